"""The command line: what it sets, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.config import ComputeDtype, Lease, RuntimeConfig
from headrace_engine.environment import PROCESSORS_VARIABLE
from headrace_engine.service.program import arguments
from headrace_engine.service.program.arguments import parse_arguments
from headrace_engine.service.program.model_arguments import Setting, read_model


def test_defaults():
    given = parse_arguments([])
    assert (given.listen, given.drain_limit, given.reflection, given.models) == ("127.0.0.1:7071", 30.0, True, ())
    assert (given.engine.name, given.engine.backend, given.core_threads) == ("engine", "auto", False)


def test_settings_of_the_engine():
    given = parse_arguments(
        [
            "--name",
            "e1",
            "--state-dir",
            "/s",
            "--model-root",
            "/a",
            "--model-root",
            "/b",
            "--backend",
            "torch",
            "--no-hub",
            "--core-ping-limit",
            "2.5",
            "--step-target",
            "0.25",
            "--core",
            "thread",
        ]
    )
    assert (given.engine.name, given.engine.state_dir) == ("e1", Path("/s"))
    assert given.engine.model_roots == (Path("/a"), Path("/b"))
    assert (given.engine.backend, given.engine.allow_hub) == ("torch", False)
    assert given.core_threads
    assert given.engine.core_ping_limit == 2.5
    assert given.engine.step_target == 0.25
    assert not given.engine.hand_over_failed
    assert parse_arguments(["--hand-over-failed"]).engine.hand_over_failed


def test_hubs_that_callers_may_name():
    assert parse_arguments([]).engine.hubs == ()
    given = parse_arguments(["--hub", "https://a.example", "--hub", "http://b.example:8080"])
    assert given.engine.hubs == ("https://a.example", "http://b.example:8080")
    assert given.engine.allow_hub


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hub", "a.example"], '"a.example" is not the URL of a hub'),
        (["--hub", "https://a.example", "--no-hub"], "not allowed with"),
    ],
)
def test_a_wrong_hub_is_refused_in_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_processors_come_from_the_command_line_or_environment(tmp_path, monkeypatch):
    first, second = tmp_path / "a.py", tmp_path / "b.cu"
    for file in (first, second):
        file.touch()
    monkeypatch.setenv(PROCESSORS_VARIABLE, f" one={first} ;two={second};")
    assert parse_arguments([]).engine.logits_processors == {"one": first, "two": second}
    given = parse_arguments(["--logits-processor", f"x={second}", "--logits-processor", f"y={first}"])
    assert given.engine.logits_processors == {"x": second, "y": first}
    monkeypatch.delenv(PROCESSORS_VARIABLE)
    assert parse_arguments([]).engine.logits_processors == {}


@pytest.mark.parametrize("where", ["--logits-processor", PROCESSORS_VARIABLE])
def test_a_wrong_logits_processor_ends_the_program_with_a_line(where, monkeypatch, capsys):
    monkeypatch.setenv(PROCESSORS_VARIABLE, "a=/no/such.py")
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--logits-processor", "a=/no/such.py"] if where.startswith("-") else [])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f'headrace-engine: {where}: "/no/such.py": no such file\n'


def test_settings_of_models_apply_to_every_model():
    given = parse_arguments(
        [
            "--model",
            "a=/m/a",
            "--model",
            "b=org/name",
            "--max-batch",
            "4",
            "--max-length",
            "128",
            "--dtype",
            "bfloat16",
            "--memory-ratio",
            "0.5",
        ]
    )
    common = {"max_batch": 4, "max_length": 128, "dtype": ComputeDtype.BFLOAT16, "memory_ratio": 0.5}
    assert given.models == (RuntimeConfig("a", "/m/a", **common), RuntimeConfig("b", "org/name", **common))


def test_any_field_can_be_set():
    given = parse_arguments(
        [
            *("--model", "a=/m=1/a"),
            *("--set", "drain_limit=2.5s"),
            *("--set", "max_lease=90"),
            *("--set", "enable_prefix_cache=false"),
            *("--set", "dtype=COMPUTE_DTYPE_FLOAT32"),
            *("--set", 'default_lease={"running": "5s"}'),
            *("--set", "revision=7"),
            *("--set", "device_list=[0, 1]"),
        ]
    )
    assert given.models == (
        RuntimeConfig(
            "a",
            "/m=1/a",
            drain_limit=2.5,
            max_lease=90.0,
            enable_prefix_cache=False,
            dtype=ComputeDtype.FLOAT32,
            default_lease=Lease(running=5.0),
            revision="7",
            device_list=(0, 1),
        ),
    )


@pytest.mark.parametrize("text", ["bfloat16", "BFLOAT16", "compute_dtype_bfloat16"])
def test_choices_are_taken_in_any_case_and_with_their_prefix(text):
    (model,) = parse_arguments(["--model", "a=/m", "--dtype", text]).models
    assert model.dtype is ComputeDtype.BFLOAT16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--name a/b", '--name: "a/b" is not a valid engine name; allowed: 1 to 64 of letters, digits'),
        ("--name=", '--name: "" is not a valid engine name'),
        ("--model smol", '--model: "smol" is not NAME=PATH, such as smol=/models/smol.gguf'),
        ("--model =/m", '--model: "=/m" is not NAME=PATH'),
        ("--model a=", '--model: "a=" is not NAME=PATH'),
        ("--model a,b=/m", "--model a,b=/m: model_name = 'a,b' is not a valid name; allowed"),
        ("--model a=/m --model a=/n", '--model: "a" is given twice'),
        ("--model a=/m --max-batch many", '--max-batch: "many" is not a whole number in range; allowed: at least 1'),
        ("--model a=/m --max-batch 1.5", '--max-batch: "1.5" is not a whole number in range; allowed: at least 1'),
        ("--model a=/m --max-batch 0", '--max-batch: "0" is not a whole number in range; allowed: at least 1, at most'),
        ("--model a=/m --memory-ratio 2", '--memory-ratio: "2" is not a number in range; allowed: above 0, at most 1'),
        ("--model a=/m --dtype float8", '--dtype: "float8" is not one of: auto, float32, bfloat16, float16'),
        ("--backend torch --model a=/m --set weight_quant=int8", "weight_quant = INT8 is not supported by the torch"),
        ("--backend torch --model a=/m --set speculation=draft", "speculation = DRAFT is not supported by the torch"),
        ("--backend cpu --model a=/m --set activation_quant=fp8", "activation_quant = FP8 is not supported by the cpu"),
        ("--model a=/m --set no_such_field=1", '"no_such_field" is not a field of RuntimeConfig, which has: act'),
        ("--model a=/m --set max_bacth=1", '--set max_bacth=1: "max_bacth" is not a field of RuntimeConfig; did you'),
        ("--model a=/m --set model_path=/n", "--set model_path=/n: it is given by --model NAME=PATH"),
        ("--model a=/m --set max_batch", '--set: "max_batch" is not FIELD=VALUE, such as max_batch=8'),
        ("--model a=/m --set max_batch=x", '--set max_batch: "x" is not a whole number in range; allowed: at least 1'),
        ("--model a=/m --set drain_limit=-1s", '--set drain_limit: "-1s" is not a number in range; allowed: at least'),
        ("--model a=/m --set enable_prefix_cache=1", '--set enable_prefix_cache: "1" is not true or false'),
        ("--model a=/m --set default_lease=60", "settings of --model a=/m: "),
        ("--model a=/m --set device_list=a", '--set device_list: "a" is not JSON, such as [0, 1]'),
        ("--model a=/m --set max_prefill_tokens=4", "max_prefill_tokens = 4 is less than max_batch = 32"),
        ("--max-batch 4", "--max-batch is a setting of models, but there is no --model"),
        ("--set max_batch=4", "--set max_batch is a setting of models, but there is no --model"),
        ("--listen 127.0.0.1:99999", 'argument --listen: "127.0.0.1:99999" is not an address: write HOST:PORT'),
        ("--drain-limit -1", 'argument --drain-limit: "-1" is not a number of seconds, 0 or more'),
        ("--drain-limit inf", 'argument --drain-limit: "inf" is not a number of seconds, 0 or more'),
        ("--core-ping-limit 0", 'argument --core-ping-limit: "0" is not a number of seconds, more than 0'),
        ("--log-format xml", "argument --log-format: invalid choice: 'xml'"),
        (
            "--backend nope",
            "argument --backend: invalid choice: 'nope' (choose from 'auto', 'cpu', 'cuda', 'torch')",
        ),
        ("--no-such", "unrecognized arguments: --no-such"),
    ],
)
def test_bc194_a_wrong_line_is_refused_in_one_line(line, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(line.split())
    assert caught.value.code == 2
    reported = capsys.readouterr().err
    assert reported.startswith("headrace-engine: ")
    assert message in reported
    assert reported.count("\n") == 1


@pytest.mark.parametrize("kind", ["LINEAR", "linear", "ROPE_SCALING_TYPE_LINEAR"])
def test_enums_may_be_short_in_json_too(kind: str) -> None:
    setting = Setting.from_pair(f'rope_scaling={{"type": "{kind}", "factor": 2.0}}')
    config = read_model("smol=/m/smol", [setting], "cpu")
    assert config.rope_scaling is not None
    assert config.rope_scaling.type.name == "LINEAR"


def test_a_wrong_enum_in_json_lists_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"one of: .*linear"):
        Setting.from_pair('rope_scaling={"type": "bent", "factor": 2.0}')


def test_vllms_service_needs_its_library(monkeypatch, capsys):
    assert parse_arguments(["--vllm-service", "smol"]).vllm_model == "smol"
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        parse_arguments(["--vllm-service", "smol"])
    assert "--vllm-service: its library is not installed: pip install 'headrace-engine[smg]'" in capsys.readouterr().err
