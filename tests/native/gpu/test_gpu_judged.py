"""What `make gpu-check` says to `--backend auto`: all is green, or what is not; rehearsed on the simulated device."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.cuda_checked import RESULT, SANITIZERS, why_unchecked
from native.conftest import need_sim
from native.gpu.test_gpu_rehearsal import check, planted
from native.mutants.mutant import Mutant

from bench.common.page import RESULTS
from bench.gpu import check as gpu_check
from bench.gpu import checked
from bench.gpu.library import code_digest
from bench.gpu.outcome import Kept, Outcome
from bench.gpu.parts import sanitizer

STEPS = [step.name for step in gpu_check.steps("cuda")]
CODE = code_digest()
Outcomes = dict[str, Outcome]


def figures(step: str) -> dict[str, Any]:
    """What a step of the cuda backend finds, and of torch's, which is a little slower."""
    kind, *_ = step.split(":")
    if kind in ("decode", "torch"):
        slower = 1.5 if kind == "torch" else 1.0
        times = {"prompt_s": 0.02 * slower, "step_s": 0.005 * slower, "tokens_s": 100.0}
        return {"batches": [{"batch": batch, **times} for batch in (1, 8, 32, 128)]}
    others = {
        "tests": {"passed": 100},
        "limits": {"copy_bytes_s": 3e12, "product_ops_s": 8e14},
        "ops": {"gather_rows": 1e-4},
        "tokens": {"ids": 512, "parted": 3, "smallest gap": 1e-3},
    }
    return others.get(kind, {})


def green() -> Outcomes:
    found = {"card": "H100", "code": CODE, "date": "2026-01-01 00:00 UTC"}
    return {step: Outcome(step, "passed", 1.0, figures(step), **found) for step in STEPS}


def why(tmp_path: Path, outcomes: Outcomes) -> str:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(checked.result(outcomes)))
    return why_unchecked(path)


def test_a_green_check_opens_the_gate(tmp_path: Path) -> None:
    outcomes = green()
    assert checked.undone(outcomes, STEPS, CODE) == []
    assert why(tmp_path, outcomes) == ""
    points = checked.points(outcomes)
    assert len(points) == 2 * 2 * 4 * 2
    assert points["Llama 3.1 8B, sampled, batch 32, step"] == {"cuda": 0.005, "torch": 0.0075}


def as_quick(outcomes: Outcomes) -> None:
    outcomes["torch:SmolLM2-135M:greedy"] = replace(
        outcomes["decode:SmolLM2-135M:greedy"], step="torch:SmolLM2-135M:greedy"
    )


def test_a_load_as_quick_as_torch_is_quick_enough(tmp_path: Path) -> None:
    outcomes = green()
    as_quick(outcomes)
    assert why(tmp_path, outcomes) == ""


def ended(step: str, ending: str = "failed", **found: int) -> Callable[[Outcomes], None]:
    def change(outcomes: Outcomes) -> None:
        outcomes[step] = replace(outcomes[step], ending=ending, figures=found)  # type: ignore[arg-type]

    return change


def slower(outcomes: Outcomes) -> None:
    step = outcomes["torch:Llama 3.1 8B:greedy"]
    batches = [{**batch, "step_s": 0.0049} if batch["batch"] == 8 else batch for batch in step.figures["batches"]]
    outcomes[step.step] = replace(step, figures={"batches": batches})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (ended("tests:test_norm.py", failed=3, passed=7), "3 tests failed"),
        (ended("tests:test_norm.py", errors=2), "2 tests failed"),
        (ended("tests:test_norm.py", "too long"), "1 tests failed"),
        (ended("tests:test_norm.py", "passed", skipped=9), "1 tests failed"),
        (ended("ops:rows"), "1 tests failed"),
        (ended("tokens"), "greedy tokens are not those of torch on H100"),
        (ended("sanitizer:racecheck:test_norm.py"), "racecheck found 1 errors on H100"),
        (ended("torch:SmolLM2-135M:greedy"), "SmolLM2-135M, greedy, batch 1, step takes 0.005 s on H100, with torch N"),
        (slower, "Llama 3.1 8B, greedy, batch 8, step takes 0.005 s on H100, with torch 0.0049 s"),
    ],
)  # fmt: skip
def test_whatever_is_not_green_keeps_it_shut(tmp_path: Path, change: Callable[[Outcomes], None], text: str) -> None:
    outcomes = green()
    change(outcomes)
    assert checked.undone(outcomes, STEPS, CODE) == []
    assert text in why(tmp_path, outcomes)


@pytest.mark.parametrize("changed", [{"ending": "left out"}, {"code": "of other code"}, {"card": "another card"}])
@pytest.mark.parametrize("step", ["tests:test_norm.py", "sanitizer:memcheck:test_norm.py", "tokens"])
def test_a_step_left_out_is_not_judged(step: str, changed: dict[str, Any]) -> None:
    outcomes = green()
    outcomes[step] = replace(outcomes[step], **changed)
    assert checked.undone(outcomes, STEPS, CODE) == [step]
    del outcomes[step]
    assert checked.undone(outcomes, STEPS, CODE) == [step]


@pytest.fixture
def adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Outcomes], Path]:
    """Adopts outcomes into pages and a package of its own; returns where the result is."""
    page, result = tmp_path / "gpu.md", tmp_path / "package" / RESULT.name
    page.write_text((RESULTS / "gpu.md").read_text())
    result.parent.mkdir()
    monkeypatch.setattr("bench.common.page.RESULTS", tmp_path)
    monkeypatch.setattr("bench.gpu.report.RUNS", tmp_path / "gpu.jsonl")
    monkeypatch.setattr(gpu_check, "RESULT", result)

    def adopt(outcomes: Outcomes) -> Path:
        kept = Kept(tmp_path / "out")
        for outcome in outcomes.values():
            kept.keep(outcome)
        gpu_check.adopt(kept)
        return result

    return adopt


def test_a_green_check_is_adopted(adopted: Callable[[Outcomes], Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = adopted(green())
    assert why_unchecked(path) == ""
    assert f"auto: cuda, by {path}" in capsys.readouterr().out
    page = (path.parents[1] / "gpu.md").read_text()
    assert "| SmolLM2-135M, greedy, batch 1, step | 5.000 | 7.500 | 1.50 |" in page
    assert "Greedy ids: of 512, 3 are not those of torch" in page


def test_what_is_not_green_is_not_adopted(
    adopted: Callable[[Outcomes], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = green()
    slower(outcomes)
    assert not adopted(outcomes).exists()
    assert "auto: not cuda: Llama 3.1 8B, greedy, batch 8, step takes" in capsys.readouterr().out
    outcomes["tokens"] = replace(outcomes["tokens"], ending="left out")
    assert not adopted(outcomes).exists()
    assert "auto: tokens must be done" in capsys.readouterr().out
    outcomes["limits"] = replace(outcomes["limits"], card="sim")
    with pytest.raises(SystemExit, match="simulated device"):
        adopted(outcomes)


@pytest.mark.soak
def test_torch_is_measured_beside_and_ids_compared(libraries: Path, tmp_path: Path) -> None:
    need_sim()
    status, printed, kept = check(libraries, tmp_path, "limits", "decode:*", "torch:*", "tokens")
    assert status == 0, printed
    assert kept["tokens"].figures["ids"] == 8 * 8
    points = checked.points(kept)
    assert set(points) == {
        f"tiny, {kind}, batch {batch}, {what}"
        for kind in ("greedy", "sampled") for batch in (1, 3) for what in ("prompts", "step")
    }  # fmt: skip
    assert all(set(seconds) == {"cuda", "torch"} and min(seconds.values()) > 0 for seconds in points.values())
    assert "| load | cuda ms | torch ms | torch / cuda |" in (tmp_path / "page.md").read_text()
    assert "must be done before it can take cuda" in printed
    assert not (tmp_path / RESULT.name).exists()


@pytest.mark.soak
def test_a_wrong_kernel_has_other_ids(tmp_path: Path) -> None:
    fault = Mutant("row", "cuda/rows/gather.cu", "(there ? id : 0) * chunks;", "0 * chunks;", "gathers one row", "", "")
    status, printed, kept = check(planted(tmp_path, fault), tmp_path / "out", "tokens")
    assert status == 1
    assert kept["tokens"].ending == "failed"
    assert "AssertionError" in kept["tokens"].error, printed


STAND_IN = '#!/bin/sh\n[ "$2" != racecheck ] || exit 9\nshift 6 && exec "$@"\n'
"""Takes the options of compute-sanitizer and runs the rest; one of its tools finds an error."""


@pytest.mark.soak
def test_what_a_sanitizer_finds_fails_its_step(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_sim()
    program = tmp_path / "bin" / sanitizer.PROGRAM
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    status, printed, kept = check(libraries, tmp_path / "out", "sanitizer:*")
    assert status == 1
    endings = {tool: kept[f"sanitizer:{tool}:test_device_kv.py"].ending for tool in SANITIZERS}
    assert endings == {"memcheck": "passed", "racecheck": "failed", "synccheck": "passed"}, printed
    assert kept["sanitizer:memcheck:test_device_kv.py"].figures["tests passed"] > 0


@pytest.mark.soak
def test_without_a_sanitizer_its_steps_are_left_out(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not fail the rest; but nothing is judged without them."""
    need_sim()
    monkeypatch.setenv("PATH", str(tmp_path))
    status, printed, kept = check(libraries, tmp_path / "out", "limits", "sanitizer:*")
    assert status == 0, printed
    outcome = kept["sanitizer:memcheck:test_device_kv.py"]
    assert (outcome.ending, outcome.error) == ("left out", f"{sanitizer.PROGRAM} is not on the path")
