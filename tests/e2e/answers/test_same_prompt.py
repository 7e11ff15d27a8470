"""Greedy sequences of one request are the same, with SmolLM2 in codes of four bits on the cpu backend.

How products of such weights round depends on the rows of a step. But equal rows of one step come to equal bits, and
sequences of one request compute in the same steps, from the last block of their prompt on. Those that cannot, because
a pool or a batch is too small for them, part by the rounding of `REAL_MODEL` at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from headrace import Client, ResultQueue
from support.backends.same_tokens import REAL_MODEL
from support.models.text_accuracy import smollm2

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
def client(level: None) -> Iterator[Client]:
    path = str(smollm2())
    with Client("inprocess:") as client:
        client.install_model("smol", path=path, max_length=512, max_batch=8, max_prefill_tokens=256)
        client.install_model("exact", path=path, max_length=512, max_batch=4, dtype="FLOAT32")
        client.install_model("scarce", path=path, max_length=256, max_batch=16, num_blocks=40)
        for name in ("smol", "exact", "scarce"):
            client.start_model(name)
        yield client


def chat(prompt: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}]}


def random_prompt(random: Random, most: int) -> dict[str, Any]:
    return {"ids": [random.randrange(100, 40_000) for _ in range(random.randint(1, most))]}


def start(client: Client, model: str, prompt: dict[str, Any], **changes: Any) -> tuple[str, ResultQueue]:
    return client.start_request(model, **prompt, **GREEDY | changes)


def read(queue: ResultQueue) -> Answer:
    elements = list(queue)
    ids = [token_id for one in elements for token_id in one.ids_from_generate]
    best = [row for one in elements for row in one.log_probs_list]
    return ids, [first - second for (_, first), (_, second) in best]


def answers(client: Client, model: str, prompt: dict[str, Any], **changes: Any) -> list[Answer]:
    handle, queue = start(client, model, prompt, **changes)
    found = [read(choice) for choice in queue.choices]
    client.release_request(handle)
    return found


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)


def first_part(found: Sequence[Answer]) -> tuple[int, float] | None:
    """Where the first of several answers differs from another one, and how near its two best scores are there."""
    (ids, gaps), *others = found
    places = [place for other, _ in others if (place := first_difference(ids, other)) is not None]
    return (min(places), gaps[min(places)]) if places else None


@pytest.mark.parametrize(("model", "prompt"), [*(("smol", prompt) for prompt in PROMPTS), ("exact", PROMPTS[0])])
def test_all_are_the_same(client: Client, model: str, prompt: str) -> None:
    """Ids and scores, to the last bit."""
    found = answers(client, model, chat(prompt))
    assert all(one == other for one, other in pairwise(found))


@pytest.mark.parametrize("length", [3, 16, 17, 33])
@pytest.mark.parametrize("asked", [{}, {"prompt_logprobs": 1}, {"use_prefix_cache": False}], ids=["", "told", "apart"])
def test_of_any_prompt_all_are_the_same(client: Client, length: int, asked: dict[str, Any]) -> None:
    """The first time, and when it is cached."""
    prompt = {"ids": list(range(600, 600 + length))}
    for _ in range(2):
        found = answers(client, "smol", prompt, max_new_tokens=8, **asked)
        assert all(one == other for one, other in pairwise(found))


def test_beside_others_all_are_the_same(client: Client) -> None:
    """Others come and go all the time, with prompts that fill steps."""
    random = Random(7)
    for number in range(5):
        others = [start(client, "smol", random_prompt(random, 150), n=1, max_new_tokens=20) for _ in range(2)]
        asking = start(client, "smol", random_prompt(random, 80))
        others.append(start(client, "smol", random_prompt(random, 300), n=1, max_new_tokens=random.randint(1, 20)))
        found = [read(choice) for choice in asking[1].choices]
        for handle, _ in (asking, *others):
            client.sync_request(handle)
            client.release_request(handle)
        assert all(one == other for one, other in pairwise(found)), number


def test_in_a_pool_too_small_for_all_they_part_by_rounding_alone(client: Client) -> None:
    """Those that were put back compute in other steps."""
    random = Random(3)
    runs = [start(client, "scarce", random_prompt(random, 60), max_new_tokens=60) for _ in range(3)]
    parts = []
    for handle, queue in runs:
        found = [read(choice) for choice in queue.choices]
        client.release_request(handle)
        if part := first_part(found):
            parts.append(part)
    print(f"{len(parts)} of {len(runs)} requests part: {parts}")
    assert all(gap < REAL_MODEL for _, gap in parts)
