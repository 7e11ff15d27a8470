"""Workloads for ours and peers alike: prompts of token ids by seed, answers of a fixed length, and their metrics.

- W1: SmolLM2-135M, one request, 128 ids in, 128 out.
- W2: SmolLM2-135M, 16 requests at once, 32 to 512 ids in, 64 out each.
- W3-b1, W3-b16: the shape of Qwen2.5-0.5B, 1 and 16 requests at once, 512 ids in, 64 out each.

All take the most likely id, and continue after an end of text. Every repetition has prompts of its own, so that prompt
caches do not help.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

Prompts = list[list[int]]
Arrivals = Sequence[tuple[float, int]]
"""Arrivals of one request: seconds after the start, and the number of ids."""


@dataclass(frozen=True)
class Workload:
    """Requests made at once.

    Attributes:
        model: "smol" or "qwen".
        new: ids of each answer.
        metrics: metrics that are compared.
        prompts: returns the prompts of a repetition.
    """

    name: str
    model: str
    new: int
    metrics: tuple[str, ...]
    prompts: Callable[[int], Prompts] = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """Result of one repetition.

    Attributes:
        arrivals: arrivals of each request.
        reported: rates by metric as reported by the server; the better of these and the client's is used.
    """

    arrivals: Sequence[Arrivals]
    reported: Mapping[str, float] = field(default_factory=dict)


def random_ids(count: int, seed: int) -> list[int]:
    """Return random ids that are in every vocabulary here, none of them special."""
    draw = random.Random(seed)
    return [draw.randrange(1000, 40000) for _ in range(count)]


def _one(repetition: int) -> Prompts:
    return [random_ids(128, 100 + repetition)]


def _sixteen(repetition: int) -> Prompts:
    lengths = random.Random(7)
    return [random_ids(lengths.randint(32, 512), 1000 * (repetition + 1) + number) for number in range(16)]


def _long(count: int) -> Callable[[int], Prompts]:
    return lambda repetition: [random_ids(512, 5000 * (repetition + 1) + number) for number in range(count)]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "smol", 128, ("decode", "ttft"), _one),
        Workload("W2", "smol", 64, ("output",), _sixteen),
        Workload("W3-b1", "qwen", 64, ("decode", "prefill"), _long(1)),
        Workload("W3-b16", "qwen", 64, ("output", "prefill"), _long(16)),
    )
}

UNITS = {"decode": "ids/s", "ttft": "ms", "output": "ids/s", "prefill": "ids/s"}
LESS_IS_BETTER = frozenset({"ttft"})


def read_off(workload: Workload, prompts: Prompts, answer: Answer) -> dict[str, float]:
    """Return the metrics of a repetition.

    decode: ids a second after the last request's first ones; ttft: milliseconds until the median request's first;
    output: ids a second from the start to the end; prefill: ids of the prompts a second until the last request's first.

    Raises:
        RuntimeError: an answer does not have the requested length.
    """
    counts = [sum(count for _, count in arrivals) for arrivals in answer.arrivals]
    if counts != [workload.new] * len(prompts):
        raise RuntimeError(f"{workload.name}: answers have {counts} ids, expected {workload.new} each")
    firsts = [arrivals[0][0] for arrivals in answer.arrivals]
    begun, ended = max(firsts), max(arrivals[-1][0] for arrivals in answer.arrivals)
    later = sum(count for arrivals in answer.arrivals for at, count in arrivals if at > begun)
    seen = {
        "decode": later / (ended - begun),
        "ttft": median(firsts) * 1e3,
        "output": sum(counts) / ended,
        "prefill": sum(map(len, prompts)) / begun,
    }
    return {name: max(seen[name], answer.reported.get(name, 0.0)) for name in seen}


def better(metric: str, ours: float, theirs: float) -> float:
    """Return how many times better ours is."""
    return theirs / ours if metric in LESS_IS_BETTER else ours / theirs
