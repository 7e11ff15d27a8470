"""Logits processors in the front half: what an operator may name, and what requests may choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.engine.config.logits_processors import (
    MAX_ARGUMENTS,
    check_processors,
    check_sources,
    processor_files,
    read_sources,
)
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import ProcessorFile
from headrace_engine.model_types import EffectiveConfig, RuntimeConfig

LARGEST = 3.4028234663852886e38


def boost(logits, ids, arguments):
    logits += 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "boost.py"
    path.write_text("def process(logits, ids, arguments): ...\n")
    return path


def effective(*names: str, **idle: str) -> EffectiveConfig:
    return EffectiveConfig(RuntimeConfig(), logits_processors=names, idle_processors=idle)


def refused(chosen: list[LogitsProcessor], among: EffectiveConfig) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as refusal:
        check_processors(tuple(chosen), among)
    return refusal.value


def test_files_are_named_by_name_and_path(file: Path) -> None:
    assert read_sources([f"a={file}", f"b-2.x={file}"]) == {"a": file, "b-2.x": file}
    assert read_sources([]) == {}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("boost", '"boost" is not NAME=PATH'),
        ("=FILE", '"" is not a valid name of a logits processor; allowed: 1 to 64 of letters'),
        ("-a=FILE", '"-a" is not a valid name'),
        ("a b=FILE", '"a b" is not a valid name'),
        (f"{'x' * 65}=FILE", "is not a valid name"),
        ("a=/no/such/boost.py", '"/no/such/boost.py": no such file'),
        ("a=/etc/hostname", "must end with .py or .cu"),
        ("a=", "must end with .py or .cu"),
    ],
)
def test_what_can_be_no_processor_is_refused(file: Path, entry: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_sources([entry.replace("FILE", str(file))])


def test_a_name_stands_for_one_processor(file: Path) -> None:
    with pytest.raises(ValueError, match='"a" is given twice'):
        read_sources([f"a={file}", f"a={file}"])


def test_options_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        EngineOptions(logits_processors={"a": tmp_path / "gone.cu"})
    EngineOptions(logits_processors={"a": boost})


def test_cores_get_whole_paths_and_entry_points(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    sources = {"a": "boost.py", "b": boost}
    check_sources(sources)
    assert processor_files(sources) == (ProcessorFile("a", str(file.resolve())), ProcessorFile("b"))


def test_what_the_model_has_may_be_chosen_with_any_numbers() -> None:
    given = (LARGEST, -LARGEST, 0.1, 5e-324)
    check_processors((LogitsProcessor("a", given), LogitsProcessor("b"), LogitsProcessor("a")), effective("a", "b"))


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    error = refused([LogitsProcessor("a"), LogitsProcessor("c"), LogitsProcessor("")], effective("a", "b"))
    assert [violation.field for violation in error.violations] == [
        "config.logits_processors[1].name",
        "config.logits_processors[2].name",
    ]
    assert '= "c" is not a logits processor of this engine; allowed: a, b' in error.message


def test_an_engine_without_any_says_how_to_start_one_with_some() -> None:
    assert "--logits-processor NAME=PATH" in refused([LogitsProcessor("c")], effective()).message


def test_one_that_idles_is_told_with_the_reason() -> None:
    error = refused([LogitsProcessor("c")], effective("a", c="c.cu is for CUDA devices"))
    assert '= "c": c.cu is for CUDA devices; allowed: a' in error.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), LARGEST * 2, -LARGEST * 2])
def test_arguments_that_float32_cannot_hold_are_refused(value: float) -> None:
    error = refused([LogitsProcessor("a", (1.0, value))], effective("a"))
    assert f"holds {value}" in error.message
    assert error.violations[0].field == "config.logits_processors[0].arguments"


def test_arguments_of_all_processors_together_are_limited() -> None:
    half = LogitsProcessor("a", (0.0,) * (MAX_ARGUMENTS // 2))
    check_processors((half, half), effective("a"))
    error = refused([half, half, LogitsProcessor("a", (0.0,))], effective("a"))
    assert error.message == "logits_processors has 4097 arguments in all; allowed: at most 4096"
    assert error.violations[0].field == "config.logits_processors"
