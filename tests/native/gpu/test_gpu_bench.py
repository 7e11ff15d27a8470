"""What measures more of a card runs on the simulated device, goes on where it was cut off, and keeps what failed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import WeightQuant
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Kv
from native.conftest import need_sim
from support.sim.card_machine import only_needed

from bench.gpu import measure
from bench.gpu.kernel_tests import FOLDERS
from bench.gpu.measure import Target
from bench.gpu.parts import sanitizer
from bench.gpu.parts.cases import PARTS, SHORT, WHOLE, Case
from bench.gpu.parts.expected import Expected, decoding
from bench.gpu.parts.record import Record, append, page, read
from bench.gpu.plans import H100
from bench.gpu.shapes import LLAMA, QWEN, Stored, weight_bytes


def start(libraries: Path, results: Path) -> subprocess.Popen[str]:
    """A fresh interpreter that measures all parts, with no more than a card's machine has."""
    env = {**only_needed(results.parent / "hook"), NATIVE_VARIABLE: str(libraries)}
    env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], FOLDERS))
    command = [sys.executable, "-m", "bench.gpu.measure", *PARTS, "--device", "sim", "--results", str(results)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def test_a_killed_run_resumes_and_measures_each_case_once(libraries: Path, tmp_path: Path) -> None:
    need_sim()
    results = tmp_path / "new" / "gpu-bench.jsonl"
    with start(libraries, results) as killed:
        assert killed.stdout is not None
        while "| ids/s |" not in killed.stdout.readline():
            assert killed.poll() is None
        killed.kill()
    before = results.read_text()
    with start(libraries, results) as whole:
        printed, _ = whole.communicate()
    assert whole.returncode == 0, printed
    assert results.read_text().startswith(before)
    records = read(results)
    assert {record.card for record in records} == {"sim"}
    assert [record.case for record in records if record.error] == []
    expected = {(part, case.name) for part, make in PARTS.items() for case in make(SHORT)}
    assert Counter((record.part, record.case) for record in records) == Counter(expected)
    assert all(value > 0 for record in records for name, value in record.figures.items() if name != "step ms")
    if not sanitizer.installed():
        assert "nothing to measure for sanitizer: compute-sanitizer is not installed" in printed


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(None, "a card", H100, tmp_path / "results.jsonl", "abc")  # type: ignore[arg-type]


def case(name: str, measure: Callable[[Any], Mapping[str, float]] = lambda device: {"step ms": 8.0}) -> Case:
    return Case(name, measure, lambda limits: {"step ms": Expected(4.0, 6.0)})


def fails(device: object) -> Mapping[str, float]:
    raise RuntimeError("out of luck")


def test_a_failed_case_is_kept_and_the_next_run_goes_on(target: Target) -> None:
    cases = [case("one"), case("two", fails), case("three")]
    assert measure.measure(target, "part", cases, began=0.0, limit=float("inf")) == 1
    assert [(record.case, record.error) for record in read(target.results)] == [
        ("one", ""),
        ("two", "RuntimeError: out of luck"),
    ]
    left = target.left("part", cases, again=False)
    assert [each.name for each in left] == ["three"]
    assert measure.measure(target, "part", left, began=0.0, limit=float("inf")) == 0
    assert target.left("part", cases, again=False) == []
    assert target.left("part", cases, again=True) == target.left("other part", cases, again=False) == cases


@pytest.mark.parametrize("changed", [{"card": "another"}, {"code": "def"}])
def test_other_cards_and_other_code_are_measured_anew(target: Target, changed: dict[str, str]) -> None:
    cases = [case("one")]
    measure.measure(target, "part", cases, began=0.0, limit=float("inf"))
    other = Target(**{**vars(target), **changed})  # type: ignore[arg-type]
    assert other.left("part", cases, again=False) == cases


def test_no_case_begins_after_the_time(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.measure(target, "part", [case("one"), case("two")], began=0.0, limit=-1.0) == 75
    assert capsys.readouterr().out == "gpu-bench: 2 cases of part are left: run it again\n"
    assert read(target.results) == []


def test_a_line_that_was_cut_off_is_no_record_and_spoils_none(target: Target) -> None:
    record = target.run("part", case("one"))
    whole = target.results.read_text()
    target.results.write_text(whole + whole[:30])
    append(target.results, record)
    assert read(target.results) == [record, record]


def test_the_page_shows_newest_limits_and_expectations() -> None:
    cases = [case("one"), case("two"), case("bad")]
    figures = [{"step ms": 16.0}, {"step ms": 8.0}]
    records = [Record("a card", f"day {day}", "part", "one", "", H100, each) for day, each in enumerate(figures)]
    records.append(Record("a card", "day 3", "part", "bad", "", H100, error="RuntimeError: why"))
    rows = page({"part": cases, "empty": []}, records, H100).splitlines()[4:]
    assert rows == [
        "| one | step ms | 4 | 6 | 8 | 50 | a card | day 1 |",
        "| two | step ms | 4 | 6 | – | – | – | – |",
        "| bad |  |  |  | failed: RuntimeError: why |  | a card | day 3 |",
    ]


@pytest.mark.parametrize("plan", [WHOLE, SHORT], ids=["whole", "short"])
def test_case_names_differ_and_predictions_keep_to_limits(plan: Any) -> None:
    for make in PARTS.values():
        cases = list(make(plan))
        assert len({each.name for each in cases}) == len(cases)
        for each in cases:
            for name, expected in each.expect(H100).items():
                assert expected.limit is not None
                assert expected.predicted is not None
                assert (expected.predicted < expected.limit) == name.endswith("/s")


def test_codes_move_what_they_take() -> None:
    """Of 7.5 billion weights in INT4, the head's 0.53 have eight bits; groups of 128 have a scale and an offset."""
    layers, head = 7.505e9 - 0.525e9, 0.525e9
    assert weight_bytes(LLAMA, WeightQuant.INT4) == pytest.approx(
        layers * (0.5 + 4 / 128) + head * (1 + 2 / 128), rel=1e-3
    )
    assert weight_bytes(LLAMA, WeightQuant.INT8) == pytest.approx(7.505e9, rel=1e-2)


def test_stored_bytes_set_the_limit_of_steps() -> None:
    load = WHOLE.prompts
    limits = [
        decoding(LLAMA, load, 32, H100, Stored(kv=kv))["step ms"].limit for kv in (Kv.BFLOAT16, Kv.INT8, Kv.UINT4)
    ]
    assert limits == sorted(limits, reverse=True)  # type: ignore[type-var]
    assert len(set(limits)) == 3


def test_the_shape_of_qwen_is_that_of_its_model() -> None:
    """1.54 billion parameters, the embedding once: its head is the same matrix."""
    assert weight_bytes(QWEN, WeightQuant.NONE) == pytest.approx(2 * 1.5437e9, rel=1e-3)


def test_kernels_are_tested_under_the_sanitizer(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in takes its options and runs the rest, as compute-sanitizer does."""
    need_sim()
    program = tmp_path / sanitizer.PROGRAM
    program.write_text('#!/bin/sh\n[ "$1 $2" = "--tool memcheck" ] && shift 6 && exec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv(NATIVE_VARIABLE, str(libraries))
    assert sanitizer.installed()
    which = "forward and test_blocks_go"
    assert sanitizer.checked(which, "memcheck", "test_device_kv.py")["tests passed"] > 0
    with pytest.raises(RuntimeError, match="status"):
        sanitizer.checked(which, "racecheck", "test_device_kv.py")
