"""Sequences of one request with SmolLM2 on the cpu backend: what greedy ones have in common, and where they may part.

The first computes the prompt, many rows at a time; the others find all but its last block in the pool and compute the
rest, few rows at a time. With weights in float32 both give the same bits, elsewhere the rounding of `REAL_MODEL`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from accuracy_of_text import smollm2
from headrace import Client
from same_tokens import REAL_MODEL

PROMPTS = (
    "Tell me about rivers.",
    "What is the capital of France?",
    "Write a short poem about a mill and the wheel that turns in its stream.",
    "My name is Ada and I bake bread. What should I know about flour?",
)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24, "n": 4, "logprobs": True, "top_logprobs": 2}

Answer = tuple[list[int], list[float]]
"""The ids of a sequence, and how far apart the two best scores were at each."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    path = str(smollm2())
    with Client("inprocess:") as client:
        client.install_model("smol", path=path, max_length=512, max_batch=4)
        client.install_model("exact", path=path, max_length=512, max_batch=4, dtype="FLOAT32")
        for name in ("smol", "exact"):
            client.start_model(name)
        yield client


def answers(client: Client, model: str, prompt: str) -> list[Answer]:
    handle, queue = client.start_request(model, messages=[{"role": "user", "content": prompt}], **GREEDY)
    found = []
    for choice in queue.choices:
        elements = list(choice)
        ids = [token_id for one in elements for token_id in one.ids_from_generate]
        best = [row for one in elements for row in one.log_probs_list]
        found.append((ids, [first - second for (_, first), (_, second) in best]))
    client.release_request(handle)
    return found


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)


@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_in_float32_all_are_the_same(client: Client, prompt: str) -> None:
    found = answers(client, "exact", prompt)
    assert all(one == other for one, other in pairwise(found))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_elsewhere_the_first_parts_from_the_others_by_rounding_alone(client: Client, prompt: str) -> None:
    """The others are computed alike, and stay together."""
    (ids, _), *others = answers(client, "smol", prompt)
    assert all(one == other for one, other in pairwise(others))
    other, gaps = others[0]
    place = first_difference(ids, other)
    assert len(ids) == len(other) or place is not None
    if place is not None:
        print(f"parts at token {place}, where the two best scores are {gaps[place]:.3f} apart")
        assert gaps[place] < REAL_MODEL
