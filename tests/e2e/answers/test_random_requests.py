"""Random requests of every kind, in a pool for fewer, while cores are killed: each is what it is alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from headrace import ResultQueue
from support.servers.books import release_all
from support.servers.processes import core_of
from support.servers.scarcity import FORMATS, Chance, Scarce, scarce_engine

CASES = {"cpu": range(3), "cpu UINT4": (3,), "torch INT8": (4,), "torch UINT4": (5,)}
"""Backend and mode of keys and values, and the seeds. Each kills one core; a model bears five losses in ten minutes."""

LONG: dict[str, Any] = {"ids": [5, 6, 7], "max_new_tokens": 100, "ignore_eos": True, "temperature": 1.2}
"""Three of these grow beyond the pool."""


@dataclass
class Answer:
    """What one sequence came to."""

    ids: list[int]
    text: str
    logprobs: list[float]
    tops: list[list[int]]
    end: object


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scarce]:
    """One whose pool holds three long sequences, of the backend and with the mode of the case."""
    backend, _, mode = request.param.partition(" ")
    config = {"num_blocks": 10, "compute_unit": "CPU", "kv_cache_mode": mode or "DEFAULT"}
    with scarce_engine(tmp_path_factory.mktemp("random"), backend, **config) as engine:
        yield engine


def random_request(chance: Chance) -> dict[str, Any]:
    """A prompt and a config."""
    config: dict[str, Any] = {
        "ids": chance.ids(40),
        "max_new_tokens": chance.randint(10, 90),
        "seed": chance.randrange(2**64),
        "temperature": chance.choice([0.0, 0.7, 1.5]),
        "top_k": chance.choice([0, 5, 40]),
        "top_p": chance.choice([1.0, 0.9]),
        "skip_special_tokens": chance.random() < 0.5,
        **chance.sometimes(0.5, logprobs=True, top_logprobs=chance.randint(0, 5)),
        **chance.sometimes(0.3, repetition_penalty=chance.choice([0.7, 1.3])),
        **chance.sometimes(0.3, presence_penalty=0.5, frequency_penalty=chance.choice([-0.5, 0.9])),
        **chance.sometimes(0.2, no_repeat_ngram_size=chance.randint(1, 3)),
        **chance.sometimes(0.2, bad_words_ids=[chance.ids(2) for _ in range(5)]),
        **chance.sometimes(0.2, logit_bias={token: chance.uniform(-5, 5) for token in chance.ids(8)}),
        **chance.sometimes(0.3, n=2),
    }
    if chance.random() < 0.3:
        return {**config, "response_format": chance.choice(FORMATS)}
    return {
        **config,
        **chance.sometimes(0.4, min_new_tokens=min(chance.randint(1, 20), config["max_new_tokens"])),
        **chance.sometimes(0.4, stop_words=[chr(chance.randrange(33, 127)) for _ in range(3)]),
        **chance.sometimes(0.3, stop_words_ids=[chance.ids(2) for _ in range(4)]),
        **chance.sometimes(0.3, stop_token_ids=chance.ids(8)),
        **chance.sometimes(0.3, include_stop=True),
        **chance.sometimes(0.3, eos_token_id=chance.ids(10)),
    }


def read(queue: ResultQueue) -> list[Answer]:
    """All sequences of a request."""
    return [_read_one(choice) for choice in queue.choices]


def _read_one(queue: ResultQueue) -> Answer:
    elements = list(queue)
    return Answer(
        ids=[token for one in elements for token in one.ids_from_generate],
        text="".join(one.text for one in elements),
        logprobs=[value for one in elements for value in one.token_logprobs_list],
        tops=[[token for token, _ in row] for one in elements for row in one.log_probs_list],
        end=(queue.finish_reason, queue.GenerateStatus()),
    )


@pytest.mark.parametrize(("engine", "seeds"), CASES.items(), indirect=["engine"], ids=CASES)
def test_each_request_is_what_it_is_alone(engine: Scarce, seeds: Sequence[int]) -> None:
    for seed in seeds:
        check_all_at_once(engine, seed)


def check_all_at_once(engine: Scarce, seed: int) -> None:
    """Random requests together, while the pool is scarce and a core is killed."""
    server, gate, client = engine
    chance = Chance(seed)
    wanted = [random_request(chance) for _ in range(8)] + [{**LONG, "seed": number} for number in range(5)]
    chance.shuffle(wanted)
    alone = [read(client.start_request("tiny", use_prefix_cache=False, **request)[1]) for request in wanted]
    epoch = client.engine_stats("tiny")[0].core_epoch
    gate.shut()
    queues = [client.start_request("tiny", **request)[1] for request in wanted]
    gate.let(chance.randint(3, 40))
    core_of(server).kill()
    gate.open()
    together = [read(queue) for queue in queues]
    for request, expected, found in zip(wanted, alone, together, strict=True):
        for one, other in zip(expected, found, strict=True):
            assert (other.ids, other.text, other.end, other.tops) == (one.ids, one.text, one.end, one.tops), request
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)
    assert client.engine_stats("tiny")[0].core_epoch == epoch + 1
    preempted = [choice.RequestStatInfo()["preemptions"] for queue in queues for choice in queue.choices]
    assert any(preempted), "the pool was not scarce"
    assert len({one.end for answers in alone for one in answers}) > 1, "all ended alike"
    release_all(client)
