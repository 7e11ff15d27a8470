"""Whether the cuda backend has been checked on a card: the result that the distribution carries, if it carries one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULT = Path(__file__).with_name("cuda_checked.json")
"""Result of a check on a card (`make gpu-check` writes it): an object with

    card         its name
    sources      digest of the sources of the kernels, and of the cuda backend, which launches them; a change to either
                 asks for another check
    tests        {"passed": …, "failed": …}, of the tests of the kernels; a step of the check that did not pass, and
                 says no number, is one that failed
    sanitizers   number of files in whose tests each of SANITIZERS found an error, those of sampling included
    same_tokens  true: greedy tokens are those of the torch backend
    points       for each measured load, {"cuda": seconds, "torch": seconds}
"""

SANITIZERS = ("memcheck", "racecheck", "synccheck")


def why_unchecked(path: Path = RESULT) -> str:
    """Return why the cuda backend does not count as checked on a card; "" if it does."""
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        return "its kernels have not been checked on a card"
    except (ValueError, RecursionError) as error:
        return f"{path.name} cannot be read: {error}"
    if not isinstance(result, dict):
        return f"{path.name} is no object"
    return "; ".join(problems_of(result))


def problems_of(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a result says against the cuda backend."""
    card = result.get("card")
    if not isinstance(card, str) or not card:
        yield "the check names no card"
        return
    tests = _object(result, "tests")
    if tests.get("failed") != 0 or not _count(tests.get("passed")):
        yield f"{tests.get('failed')} tests failed, {tests.get('passed')} passed on {card}"
    errors = _object(result, "sanitizers")
    for name in SANITIZERS:
        if errors.get(name) != 0:
            yield f"{name} found {errors.get(name, 'an unknown number of')} errors on {card}"
    if result.get("same_tokens") is not True:
        yield f"greedy tokens are not those of torch on {card}"
    points = _object(result, "points")
    if not points:
        yield f"nothing was measured on {card}"
    for name, seconds in points.items():
        mine, other = (_seconds(seconds, key) for key in ("cuda", "torch"))
        if mine is None or other is None or mine > other:
            yield f"{name} takes {mine} s on {card}, with torch {other} s"


def _object(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = result.get(name)
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _seconds(point: Any, name: str) -> float | None:
    """Return a time of a point; None: there is none."""
    value: Any = point.get(name) if isinstance(point, dict) else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and 0 < value < float("inf") else None
