"""Candidates, told prompts, vectors, salts and formats in a scarce pool with a host tier, while cores are killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from headrace import Client, ResultQueue
from support.models.tiny_tokenizer import VOCAB_SIZE
from support.servers.books import release_all
from support.servers.processes import core_of
from support.servers.scarcity import FORMATS, Chance, Scarce, scarce_engine

EOS = {"eos_token_id": [2]}


@dataclass
class Answer:
    """What a request came to: of each sequence ids, text, likeliest ids and end; then logprobs, and what is told."""

    sequences: list[tuple[list[int], str, list[list[int]], object]]
    logprobs: list[float]
    vectors: list[int]
    prompt: list[tuple[int, list[int]]]
    prompt_logprobs: list[float]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scarce]:
    sizes = {"num_blocks": 11, "num_host_blocks": 12, "max_prefill_tokens": 48, "prefix_cache_ttl": 60}
    with scarce_engine(tmp_path_factory.mktemp("candidates"), "cpu", **sizes) as engine:
        yield engine


def random_request(chance: Chance, beginnings: list[list[int]]) -> dict[str, Any]:
    """A prompt, most often with a beginning that others have too, and a config."""
    count = chance.randint(1, 2)
    candidates = {"n": count, "best_of": count + chance.randint(1, 3), "length_penalty": chance.choice([0.0, 1.0, 2.5])}
    free = {**chance.sometimes(0.5, stop_words=[chr(chance.randrange(33, 127))]), "eos_token_id": chance.ids(20)}
    return {
        "ids": [*chance.choice(beginnings)[: chance.randint(0, 60)], *chance.ids(10)],
        "max_new_tokens": chance.randint(10, 50),
        "seed": chance.randrange(2**64),
        "temperature": chance.choice([0.7, 1.5]),
        **(candidates if chance.random() < 0.6 else {"n": count}),
        **(free if chance.random() < 0.5 else {"response_format": chance.choice(FORMATS), **EOS}),
        **chance.sometimes(0.5, logprobs=True, top_logprobs=chance.randint(0, 5)),
        **chance.sometimes(0.5, prompt_logprobs=chance.randint(0, 3)),
        **chance.sometimes(0.3, enable_tensors_from_model_inference=True),
        **chance.sometimes(0.3, presence_penalty=0.5, frequency_penalty=0.9, no_repeat_ngram_size=3),
        **chance.sometimes(0.4, cache_salt=chance.choice("ab")),
        **chance.sometimes(0.3, priority=1),
    }


def read(client: Client, queue: ResultQueue, request: dict[str, Any]) -> Answer:
    """All that a request brings; it is released."""
    answer = Answer([], [], [], [], [])
    for choice in queue.choices:
        elements = list(choice)
        ids = [token for one in elements for token in one.ids_from_generate]
        tops = [[token for token, _ in row] for one in elements for row in one.log_probs_list]
        end = (choice.finish_reason, choice.GenerateStatus())
        answer.sequences.append((ids, "".join(one.text for one in elements), tops, end))
        answer.logprobs += [value for one in elements for value in one.token_logprobs_list]
        answer.vectors.append(sum(len(one.tensors_from_model_inference) for one in elements))
    if "prompt_logprobs" in request and len(request["ids"]) > 1:
        piece = client.get_request(queue.handle, prompt_logprobs_from=0).prompt_logprobs
        assert piece is not None
        tops = [[token for token, _ in row] for row in piece.log_probs_list]
        answer.prompt = list(zip(piece.ids, tops, strict=True))
        answer.prompt_logprobs = piece.token_logprobs_list
    client.release_request(queue.handle)
    return answer


@pytest.mark.parametrize("seed", range(3))
def test_each_is_what_it_is_alone(engine: Scarce, seed: int) -> None:
    server, gate, client = engine
    chance = Chance(seed)
    beginnings = [[chance.randrange(3, VOCAB_SIZE) for _ in range(60)] for _ in range(3)]
    wanted = [random_request(chance, beginnings) for _ in range(12)]
    alone = [
        read(client, client.start_request("tiny", use_prefix_cache=False, **request)[1], request) for request in wanted
    ]
    gate.shut()
    queues = [client.start_request("tiny", **request)[1] for request in wanted]
    gate.let(chance.randint(2, 30))
    core_of(server).kill()
    gate.open()
    for request, queue, expected in zip(wanted, queues, alone, strict=True):
        found = read(client, queue, request)
        assert found.sequences == expected.sequences, request
        assert (found.prompt, found.vectors) == (expected.prompt, expected.vectors), request
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert found.prompt_logprobs == pytest.approx(expected.prompt_logprobs, abs=1e-3)
    release_all(client)
    assert client.engine_stats("tiny")[0].host_blocks_used > 0, "the pool was not scarce"
