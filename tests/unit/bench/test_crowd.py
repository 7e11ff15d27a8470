"""What the crowd of `make soak` holds its servers to."""

from __future__ import annotations

import pytest

from bench.service.crowd import LIMIT_FILES, LIMIT_KIB, LIMIT_MIB, Result, Trace, problems
from bench.service.crowd_callers import Findings
from bench.service.crowd_script import Script

PIECES = [b" one", b" two", b"", b" thr", b"ee", "\N{EURO SIGN}".encode()[:2], "\N{EURO SIGN}".encode()[2:], b" six"]


@pytest.mark.parametrize(
    ("text", "tokens"), [(" one two", 2), (" one two", 3), (" three", 2), ("ee\N{EURO SIGN} six one", 5), ("", 1)]
)
def test_the_text_of_consecutive_steps_is_known(text: str, tokens: int) -> None:
    assert Script(PIECES).has(text, tokens)


@pytest.mark.parametrize(
    ("text", "tokens"), [(" one two", 1), (" one thr", 2), (" two one", 2), ("ne two", 2), (" one two", 20), ("x", 1)]
)
def test_any_other_text_is_not(text: str, tokens: int) -> None:
    assert not Script(PIECES).has(text, tokens)


def result(resident: list[float], files: list[int], **more: int) -> Result:
    """A run in which one server was read so."""
    found = Findings(
        requests=1024, refused=0, errors=more.get("errors", 0), texts=["it failed"] * more.get("errors", 0)
    )
    flooded = Findings(refused=more.get("refused", 1))
    return Result(60.0, Trace({"engine": resident}, {"engine": files}), [found], flooded, {"engine": 1.0}, 1)


def test_a_flat_run_has_no_problems() -> None:
    start = [50.0, 90.0]  # What is taken at the start is no growth.
    assert problems(result([*start, *[100.0] * 28], [20] * 30)) == []


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (result([100.0] * 15 + [102.0 + LIMIT_MIB + LIMIT_KIB] * 15, [20] * 30), "memory of engine has grown"),
        (result([100.0] * 30, [20] * 29 + [21 + LIMIT_FILES]), "more files open"),
        (result([100.0] * 30, [20] * 30, errors=1), "it failed"),
        (result([100.0] * 30, [20] * 30, refused=0), "nothing was refused"),
    ],
)
def test_what_is_not_flat_is_a_problem(run: Result, problem: str) -> None:
    assert any(problem in text for text in problems(run))
