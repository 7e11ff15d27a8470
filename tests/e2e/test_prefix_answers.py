"""Answers do not depend on what the prefix cache holds: long prompts that share beginnings, asked again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client
from tiny_models import make_tiny_llama

NEW = 12
ROUNDS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("prefixes") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client("inprocess:") as client:
        yield client


def prompts(count: int, longest: int) -> list[list[int]]:
    """Prompts of 100 to `longest` ids; two of three begin like one before them, up to any place."""
    chance = random.Random(7)
    made: list[list[int]] = []
    for place in range(count):
        length = chance.randrange(100, longest)
        head = made[chance.randrange(place)] if place % 3 else []
        head = head[: chance.randrange(len(head) + 1)][: length - 1]
        made.append(head + [chance.randrange(3, 384) for _ in range(length - len(head))])
    return made


def answers(client: Client, asked: list[list[int]], **fields: object) -> tuple[list[list[int]], int]:
    """What eight at a time are answered, and the prompt tokens that came from the cache."""
    found, reused = [], 0
    for begin in range(0, len(asked), 8):
        queues = [
            client.start_request("tiny", ids=ids, max_new_tokens=NEW, ignore_eos=True, do_sample=False, **fields)[1]  # type: ignore[arg-type]
            for ids in asked[begin : begin + 8]
        ]
        for queue in queues:
            found.append([token for elements in queue for token in elements.ids_from_generate])
            reused += int(queue.RequestStatInfo()["context_cached_length"] or 0)
            client.release_request(queue.handle)
    return found, reused


@pytest.mark.parametrize("kv_cache_mode", ["DEFAULT", "INT8", "UINT4"])
@pytest.mark.parametrize(
    ("count", "longest"), [(18, 900), pytest.param(50, 3000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_bc078_a_warm_cache_changes_no_answer(
    client: Client, folder: Path, kv_cache_mode: str, count: int, longest: int
) -> None:
    """Shuffled, so that prompts are found whole, in part, or evicted; half of them fit."""
    asked = prompts(count, longest)
    tokens = sum(map(len, asked))
    client.install_model(
        "tiny", path=str(folder), max_batch=8, max_length=3200, num_threads=1, kv_cache_mode=kv_cache_mode,
        max_prefill_tokens=512, num_blocks=max(260, tokens // 16 // 2), dtype="FLOAT32",
    )  # fmt: skip
    client.start_model("tiny")
    try:
        cold, nothing = answers(client, asked, use_prefix_cache=False)
        assert nothing == 0
        hits = 0
        for number in range(ROUNDS):
            order = random.Random(number).sample(range(count), count)
            warm, reused = answers(client, [asked[place] for place in order])
            hits += reused
            assert warm == [cold[place] for place in order]
        assert hits > tokens, "the cache gave next to nothing: nothing was tested"
    finally:
        client.stop_model("tiny")
        client.release_model("tiny")
