"""Answers depend neither on what the prefix cache holds nor on preemption, in any mode of keys and values: long prompts
that share beginnings, asked again and again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from headrace import Client
from headrace._transport.transport import open_transport
from support.models.tiny_models import make_tiny_llama

NEW = 12
ROUNDS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("prefixes") / "tiny", max_position_embeddings=4096)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(open_transport("inprocess:", {"backend": request.param})) as client:
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


@dataclass
class Answers:
    """The ids of each, and how many prompt tokens came from the cache and requests were put back in all.

    `fetched`: of the tokens from the cache, those from host memory.
    """

    ids: list[list[int]] = field(default_factory=list)
    reused: int = 0
    fetched: int = 0
    preemptions: int = 0


def answers(client: Client, asked: list[list[int]], new: int = NEW, **fields: Any) -> Answers:
    """What eight at a time are answered."""
    found = Answers()
    for begin in range(0, len(asked), 8):
        queues = [
            client.start_request("tiny", ids=ids, max_new_tokens=new, ignore_eos=True, do_sample=False, **fields)[1]
            for ids in asked[begin : begin + 8]
        ]
        for queue in queues:
            parts = list(queue)
            found.ids.append([token for elements in parts for token in elements.ids_from_generate])
            stat = queue.RequestStatInfo()
            found.fetched += parts[-1].prefix_len_cpu
            assert parts[-1].prefix_cache_len == stat["context_cached_length"]
            assert parts[-1].prefix_len_gpu == parts[-1].prefix_cache_len - parts[-1].prefix_len_cpu
            found.reused += stat["context_cached_length"] or 0
            found.preemptions += stat["preemptions"] or 0
            client.release_request(queue.handle)
    return found


@contextmanager
def running(client: Client, folder: Path, **config: Any) -> Iterator[None]:
    """The model, for the time of a block."""
    client.install_model("tiny", path=str(folder), max_batch=8, num_threads=1, dtype="FLOAT32", **config)
    client.start_model("tiny")
    try:
        yield
    finally:
        client.stop_model("tiny")
        client.release_model("tiny")


def backends_and_modes(*of: tuple[str, str]) -> pytest.MarkDecorator:
    """The cpu backend in all modes, and others."""
    cases = [*(("cpu", mode) for mode in ("DEFAULT", "INT8", "UINT4")), *of]
    return pytest.mark.parametrize(("client", "kv_cache_mode"), cases, indirect=["client"])


@backends_and_modes()
@pytest.mark.parametrize(
    ("count", "longest"), [(18, 900), pytest.param(50, 3000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_bc078_a_warm_cache_changes_no_answer(
    client: Client, folder: Path, kv_cache_mode: str, count: int, longest: int
) -> None:
    """Shuffled, so that prompts are found whole, in part, or evicted; half of them fit."""
    asked = prompts(count, longest)
    tokens = sum(map(len, asked))
    sizes = {"max_length": 3200, "max_prefill_tokens": 512, "num_blocks": max(260, tokens // 16 // 2)}
    with running(client, folder, kv_cache_mode=kv_cache_mode, **sizes):
        cold = answers(client, asked, use_prefix_cache=False)
        assert cold.reused == 0
        hits = 0
        for number in range(ROUNDS):
            order = random.Random(number).sample(range(count), count)
            warm = answers(client, [asked[place] for place in order])
            hits += warm.reused
            assert warm.ids == [cold.ids[place] for place in order]
        assert hits > tokens, "the cache gave next to nothing: nothing was tested"


@backends_and_modes(("torch", "UINT4"))
def test_preemption_changes_no_answer(client: Client, folder: Path, kv_cache_mode: str) -> None:
    """Eight at a time, in a pool for all and in one that any two outgrow: some are preempted, and computed anew.

    Or they come back from host memory.
    """
    asked, found = [ids[: 20 + place] for place, ids in enumerate(prompts(8, 300))], []
    for num_blocks, num_host_blocks in ((8 * 13, 0), (18, 0), (18, 100)):
        sizes = {"max_length": 200, "max_prefill_tokens": 128, "num_blocks": num_blocks}
        sizes["num_host_blocks"] = num_host_blocks
        with running(client, folder, kv_cache_mode=kv_cache_mode, **sizes):
            found.append(answers(client, asked, new=150))
    roomy, narrow, tiered = found
    assert (roomy.preemptions, narrow.preemptions > 0, tiered.preemptions > 0) == (0, True, True)
    assert roomy.ids == narrow.ids == tiered.ids


@backends_and_modes(("torch", "DEFAULT"), ("torch", "INT8"))
def test_the_host_tier_changes_no_answer(client: Client, folder: Path, kv_cache_mode: str) -> None:
    """A pool in which prompts crowd each other out at once: all that is found again is found in host memory."""
    asked = prompts(9, 300)
    sizes = {"max_length": 320, "max_prefill_tokens": 128, "num_blocks": 21, "num_host_blocks": 150}
    with running(client, folder, kv_cache_mode=kv_cache_mode, **sizes):
        [model] = client.get_model("tiny")
        effective = model.effective
        assert effective is not None
        assert (effective.host_kv_tokens, effective.host_kv_bytes) == (150 * 16, effective.kv_bytes * 150 // 21)
        cold = answers(client, asked, use_prefix_cache=False)
        assert (cold.reused, cold.fetched) == (0, 0)
        answers(client, asked)
        for number in range(2):
            order = random.Random(number).sample(range(9), 9)
            warm = answers(client, [asked[place] for place in order])
            assert warm.ids == [cold.ids[place] for place in order]
            assert warm.fetched > sum(map(len, asked)) // 2
        [stat] = client.engine_stats("tiny")
        assert (stat.host_blocks_total, stat.blocks_used) == (150, 0)
        assert 0 < stat.host_blocks_used <= 150
        assert stat.prefix_cache_hit_tokens > stat.prefix_cache_host_hit_tokens > sum(map(len, asked))
