"""The command line: what it sets, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.config import ComputeDtype, KvCacheMode, Lease, RuntimeConfig
from headrace_engine.service.arguments import parse_arguments


def test_defaults():
    given = parse_arguments([])
    assert (given.listen, given.drain_limit, given.reflection, given.models) == ("127.0.0.1:7071", 30.0, True, ())
    assert (given.engine.name, given.engine.backend, given.core_threads) == ("engine", "torch", False)


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
            "--native-ops",
            "--backend",
            "cpu",
            "--no-hub",
            "--core-ping-limit",
            "2.5",
            "--core",
            "thread",
        ]
    )
    assert (given.engine.name, given.engine.state_dir) == ("e1", Path("/s"))
    assert given.engine.model_roots == (Path("/a"), Path("/b"))
    assert (given.engine.native_ops, given.engine.backend, given.engine.allow_hub) == (True, "cpu", False)
    assert given.core_threads
    assert given.engine.core_ping_limit == 2.5


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
            *("--set", "prefix_cache_ttl=2.5s"),
            *("--set", "enable_prefix_cache=false"),
            *("--set", "kv_cache_mode=KV_CACHE_MODE_INT8"),
            *("--set", 'default_lease={"running": "0s"}'),
            *("--set", "revision=7"),
            *("--set", "device_list=[0, 1]"),
        ]
    )
    assert given.models == (
        RuntimeConfig(
            "a",
            "/m=1/a",
            prefix_cache_ttl=2.5,
            enable_prefix_cache=False,
            kv_cache_mode=KvCacheMode.INT8,
            default_lease=Lease(running=0.0),
            revision="7",
            device_list=(0, 1),
        ),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model smol", '"smol" is not FIELD=VALUE'),
        ("--model a=/m --max-batch many", "max_batch"),
        ("--model a=/m --dtype float8", "FLOAT8"),
        ("--model a=/m --set no_such_field=1", "no_such_field"),
        ("--model a=/m --set max_batch", '"max_batch" is not FIELD=VALUE'),
        ("--max-batch 4", "no --model"),
        ("--drain-limit -1", "--drain-limit"),
        ("--core-ping-limit 0", "--core-ping-limit"),
        ("--log-format xml", "--log-format"),
    ],
)
def test_a_wrong_line_is_refused_saying_what_is_wrong(line, said, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(line.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
