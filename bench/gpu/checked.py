"""The result of a check, by which `--backend auto` takes the cuda backend or does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_engine.cuda_checked import SANITIZERS

from bench.gpu.library import checked_digest
from bench.gpu.outcome import Outcome

Outcomes = Mapping[str, Outcome]

_DONE = ("passed", "failed", "too long")
_FAILED = ("failed", "error", "errors")
"""Counts of pytest that say that something failed."""


def undone(outcomes: Outcomes, steps: Iterable[str], code: str) -> list[str]:
    """Return the steps that were not done with some code on the card of all.

    Args:
        steps: names of all steps of a check.
        code: digest of the code.
    """
    limits = outcomes.get("limits")
    card = "" if limits is None else limits.card
    return [name for name in steps if name not in outcomes or not _is_done(outcomes[name], card, code)]


def result(outcomes: Outcomes) -> dict[str, Any]:
    """Return the result of outcomes that are all there, as cuda_checked.json has it."""
    sanitizers = dict.fromkeys(SANITIZERS, 0)
    for name, outcome in outcomes.items():
        kind, *rest = name.split(":")
        if kind == "sanitizer" and outcome.ending != "passed":
            sanitizers[rest[0]] += 1
    return {
        "card": outcomes["limits"].card,
        "sources": checked_digest(),
        "tests": {"passed": _passed(outcomes), "failed": sum(map(_failed, outcomes.values()))},
        "sanitizers": sanitizers,
        "same_tokens": outcomes["tokens"].ending == "passed",
        "points": points(outcomes),
    }


def points(outcomes: Outcomes) -> dict[str, dict[str, float]]:
    """Return the seconds of each measured load by the cuda backend, and by torch where that was measured, by name."""
    found: dict[str, dict[str, float]] = {}
    for name, outcome in outcomes.items():
        kind, *load = name.split(":")
        if kind not in ("decode", "torch") or outcome.ending != "passed":
            continue
        backend = "cuda" if kind == "decode" else "torch"
        for batch in outcome.figures["batches"]:
            for what, seconds in (("prompts", batch["prompt_s"]), ("step", batch["step_s"])):
                found.setdefault(f"{', '.join(load)}, batch {batch['batch']}, {what}", {})[backend] = seconds
    return found


def _is_done(outcome: Outcome, card: str, code: str) -> bool:
    return outcome.ending in _DONE and (outcome.card, outcome.code) == (card, code)


def _passed(outcomes: Outcomes) -> int:
    return sum(outcome.figures.get("passed", 0) for name, outcome in outcomes.items() if name.startswith("tests:"))


def _failed(outcome: Outcome) -> int:
    """Return how many tests failed; one for a step that did not pass, and for a file without a test that passed."""
    count = sum(outcome.figures.get(name, 0) for name in _FAILED) if outcome.step.startswith("tests:") else 0
    nothing = outcome.step.startswith("tests:") and not outcome.figures.get("passed")
    return max(count, int(outcome.ending != "passed" or nothing))
