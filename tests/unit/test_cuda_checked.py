"""Whether a check on a card allows `auto` to take the cuda backend: by what the result says, not by its being there."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.cuda_checked import RESULT, SANITIZERS, why_unchecked

from bench.gpu import library
from bench.gpu.library import checked_digest

Result = dict[str, Any]

GREEN: Result = {
    "card": "H100",
    "sources": "0123456789abcdef",
    "tests": {"passed": 1054, "failed": 0},
    "sanitizers": dict.fromkeys(SANITIZERS, 0),
    "same_tokens": True,
    "points": {"8B, batch 32": {"cuda": 0.006, "torch": 0.02}, "8B, batch 1": {"cuda": 0.01, "torch": 0.01}},
}


def why(path: Path, result: object) -> str:
    path.write_text(json.dumps(result))
    return why_unchecked(path)


def test_a_green_check_counts(tmp_path: Path) -> None:
    assert why(tmp_path / "result.json", GREEN) == ""


def test_without_a_result_nothing_is_checked(tmp_path: Path) -> None:
    assert why_unchecked(tmp_path / "none.json") == "its kernels have not been checked on a card"


def test_the_result_of_this_build_is_none_or_green() -> None:
    """One that says why not would never be taken, and one of other sources says nothing of these."""
    if RESULT.exists():
        assert why_unchecked() == ""
        assert json.loads(RESULT.read_text())["sources"] == checked_digest()


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("csrc/cuda/attention/attention_decode.cu", True),
        ("csrc/common/philox.h", True),
        ("engine_service/headrace_engine/backends/cuda/decode_tasks.py", True),
        ("engine_service/headrace_engine/backends/cuda/device/tables.py", True),
        ("engine_service/headrace_engine/backends/torch/ops.py", False),
        ("csrc/cpu/pool.cpp", False),
    ],
)
def test_a_result_is_of_the_kernels_and_what_launches_them(
    path: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "ROOT", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    digests = []
    for content in ("one", "other"):
        file.write_text(content)
        digests.append(checked_digest())
    assert (digests[0] != digests[1]) == counts


def failed(result: Result) -> None:
    result["tests"]["failed"] = 2


def nothing_ran(result: Result) -> None:
    result["tests"]["passed"] = 0


def raced(result: Result) -> None:
    result["sanitizers"]["racecheck"] = 3


def left_out(result: Result) -> None:
    del result["sanitizers"]["synccheck"]


def other_tokens(result: Result) -> None:
    result["same_tokens"] = "yes"


def slower(result: Result) -> None:
    result["points"]["8B, batch 1"]["torch"] = 0.009


def unmeasured(result: Result) -> None:
    result["points"]["8B, batch 1"] = {"cuda": 0.01}


def no_points(result: Result) -> None:
    result["points"] = {}


def no_card(result: Result) -> None:
    del result["card"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (failed, "2 tests failed, 1054 passed on H100"),
        (nothing_ran, "0 tests failed, 0 passed on H100"),
        (raced, "racecheck found 3 errors on H100"),
        (left_out, "synccheck found an unknown number of errors on H100"),
        (other_tokens, "greedy tokens are not those of torch on H100"),
        (slower, "8B, batch 1 takes 0.01 s on H100, with torch 0.009 s"),
        (unmeasured, "8B, batch 1 takes 0.01 s on H100, with torch None s"),
        (no_points, "nothing was measured on H100"),
        (no_card, "the check names no card"),
    ],
)
def test_each_condition_is_needed(tmp_path: Path, change: Callable[[Result], None], text: str) -> None:
    result = copy.deepcopy(GREEN)
    change(result)
    assert why(tmp_path / "result.json", result) == text


@pytest.mark.parametrize("result", [[], 3, {}, {"card": 5, "tests": [], "points": {"a": 1}}])
def test_other_json_is_no_check(tmp_path: Path, result: object) -> None:
    assert why(tmp_path / "result.json", result)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_no_check(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    assert why_unchecked(path).startswith("result.json cannot be read: ")
