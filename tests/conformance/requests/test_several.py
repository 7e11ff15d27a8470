"""Section 2: a request with several sequences, each with a queue, statuses and an end of its own."""

from __future__ import annotations

import pytest
from headrace import Client, InvalidRequestError
from headrace.types import FinishReason, GenerateStatus
from support.contract.places import MODEL

SAMPLED = {"ids": [1, 2, 3], "max_new_tokens": 20, "ignore_eos": True, "seed": 11, "temperature": 1.5}


def test_bc038_each_choice_has_its_own_tokens(client: Client) -> None:
    handle, queue = client.start_request(MODEL, n=3, **SAMPLED)
    assert [choice.index for choice in queue.choices] == [0, 1, 2]
    ids = [tuple(token for element in choice for token in element.ids_from_generate) for choice in queue.choices]
    assert len(set(ids)) == 3
    assert {len(each) for each in ids} == {20}
    assert {choice.finish_reason for choice in queue.choices} == {FinishReason.MAX_LENGTH}
    assert {choice.GenerateStatus() for choice in queue.choices} == {GenerateStatus.GenerateFinished}
    client.release_request(handle)


def test_bc038_a_seed_fixes_each_sequence_whatever_n_is(client: Client) -> None:
    found = []
    for n in (1, 3):
        handle, queue = client.start_request(MODEL, n=n, **SAMPLED)
        found.append([[token for element in choice for token in element.ids_from_generate] for choice in queue.choices])
        client.release_request(handle)
    assert found[1][0] == found[0][0]


def test_they_share_one_prompt(client: Client) -> None:
    """All but the first find in the pool what it has computed."""
    handle, queue = client.start_request(MODEL, n=3, **{**SAMPLED, "ids": [7] * 100})
    client.sync_request(handle)
    cached = [choice.RequestStatInfo()["context_cached_length"] for choice in queue.choices]
    assert cached[1:] == [96, 96]
    client.release_request(handle)


def test_each_choice_has_statistics_of_its_own(client: Client) -> None:
    """Sequences of one request that end at different places."""
    free = {**SAMPLED, "ignore_eos": False}
    handle, queue = client.start_request(MODEL, n=3, **free, eos_token_id=list(range(0, 384, 12)))
    ids = [[token for element in choice for token in element.ids_from_generate] for choice in queue.choices]
    stats = [choice.RequestStatInfo() for choice in queue.choices]
    assert [stat["generated_token_length"] for stat in stats] == [len(each) for each in ids]
    assert len({len(each) for each in ids}) > 1
    assert [stat["context_token_length"] for stat in stats] == [3, 3, 3]
    client.release_request(handle)


def test_stopping_and_releasing_concern_all(client: Client) -> None:
    handle, queue = client.start_request(MODEL, n=3, **{**SAMPLED, "max_new_tokens": 200})
    assert len(client.stop_request(handle)) == 3
    assert all(choice.GenerateStatus() is not GenerateStatus.Generating or choice.Get() for choice in queue.choices)
    client.release_request(handle)
    assert client.list_requests(running_only=True) == []


def test_generate_has_one_text(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="n = 2"):
        client.generate(MODEL, n=2, **SAMPLED)
