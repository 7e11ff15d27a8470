"""Section 4: best_of and length_penalty, against the same candidates run as sequences and ranked here."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace import Client, InvalidRequestError
from headrace.types import FinishReason, GenerateStatus
from support.clocks.waiting import wait_until
from support.contract.places import LONG_MODEL, MODEL, SMALL_POOL_MODEL

# Ids of the vocabulary's half end a sequence of these, so that lengths differ.
SAMPLED = {
    "ids": [1, 2, 3], "max_new_tokens": 40, "min_new_tokens": 2, "seed": 11, "temperature": 1.5, "logprobs": True,
    "eos_token_id": list(range(0, 384, 8)),
}  # fmt: skip
Candidate = tuple[list[int], str, list[float]]


def candidates(client: Client, count: int, **fields: Any) -> list[Candidate]:
    """Ids, text and log-probabilities of each, every one a sequence of its own."""
    handle, queue = client.start_request(MODEL, n=count, **{**SAMPLED, **fields})
    found = [read(choice) for choice in queue.choices]
    client.release_request(handle)
    return found


def read(choice: Any) -> Candidate:
    elements = list(choice)
    return (
        [token for each in elements for token in each.ids_from_generate],
        "".join(each.text for each in elements),
        [value for each in elements for value in each.token_logprobs_list],
    )


def ranked(found: list[Candidate], penalty: float) -> list[Candidate]:
    return sorted(found, key=lambda each: -math.fsum(each[2]) / len(each[2]) ** penalty)


@pytest.mark.parametrize("penalty", [None, 0.0, 2.5])
def test_the_best_of_the_candidates_come_in_order_of_their_rank(client: Client, penalty: float | None) -> None:
    found = candidates(client, 6)
    assert len({len(ids) for ids, _, _ in found}) > 2
    handle, queue = client.start_request(MODEL, n=2, best_of=6, length_penalty=penalty, **SAMPLED)
    assert [choice.index for choice in queue.choices] == [0, 1]
    best = [read(choice) for choice in queue.choices]
    assert best == ranked(found, 1.0 if penalty is None else penalty)[:2]
    for choice, (ids, _, _) in zip(queue.choices, best, strict=True):
        assert choice.GeneratedLength() == choice.RequestStatInfo()["generated_token_length"] == len(ids)
        assert choice.GenerateStatus() is GenerateStatus.GenerateFinished
    assert client.get_request(handle).sequences[1].generated_length == len(best[1][0])
    client.release_request(handle)


@pytest.mark.sim
def test_they_share_one_prompt(client: Client) -> None:
    """All but the one that computed it, and where that is the best, another one."""
    handle, queue = client.start_request(MODEL, n=3, best_of=4, **{**SAMPLED, "ids": [9] * 100})
    client.sync_request(handle)
    cached = sorted(choice.RequestStatInfo()["context_cached_length"] for choice in queue.choices)
    assert cached[1:] == [96, 96]
    client.release_request(handle)


def test_nothing_is_readable_before_all_have_ended(client: Client) -> None:
    fields: dict[str, Any] = {"ids": [1, 2], "max_new_tokens": 9000, "ignore_eos": True, "seed": 3}
    before = client.engine_stats(LONG_MODEL)[0].generated_tokens
    handle, queue = client.start_request(LONG_MODEL, best_of=2, **fields)
    wait_until(lambda: client.engine_stats(LONG_MODEL)[0].generated_tokens > before + 20, "nothing is generated")
    assert client.get_request(handle).sequences == ()
    assert (queue.GetNoWait(), queue.GeneratedLength()) == (None, 0)
    assert queue.GenerateStatus() is GenerateStatus.Init
    (sequence,) = client.stop_request(handle)
    ids, _, _ = read(queue)
    assert len(ids) == queue.GeneratedLength() == sequence.generated_length > 0
    assert queue.finish_reason is FinishReason.STOPPED
    client.release_request(handle)


def test_preempted_candidates_rank_as_others_do(client: Client) -> None:
    """Eight of 110 tokens do not fit into 320: some are put back, and computed anew."""
    fields: dict[str, Any] = {"ids": [4, 5, 6], "max_new_tokens": 107, "eos_token_id": [383], "logprobs": False}
    found = candidates(client, 8, **{**fields, "logprobs": True})
    handle, queue = client.start_request(SMALL_POOL_MODEL, n=7, best_of=8, **{**SAMPLED, **fields})
    best = [read(choice)[:2] for choice in queue.choices]
    assert best == [each[:2] for each in ranked(found, 1.0)[:7]]
    assert any(choice.RequestStatInfo()["preemptions"] for choice in queue.choices)
    client.release_request(handle)


def test_the_model_s_own_log_probabilities_rank(client: Client) -> None:
    """Biases and temperature change what is drawn, and not what it is worth."""
    fields: dict[str, Any] = {"temperature": 3.0, "logit_bias": {7: 4.0, 9: 4.0}, "repetition_penalty": 1.5}
    found = candidates(client, 4, **fields)
    handle, queue = client.start_request(MODEL, best_of=4, **{**SAMPLED, **fields})
    assert read(queue) == ranked(found, 1.0)[0]
    client.release_request(handle)


def test_generate_gives_the_best(client: Client) -> None:
    found = candidates(client, 4)
    assert "".join(client.generate(MODEL, best_of=4, **SAMPLED)) == ranked(found, 1.0)[0][1]


def test_equal_candidates_are_a_warning(client: Client) -> None:
    fields: dict[str, Any] = {"ids": [1, 2], "max_new_tokens": 9, "do_sample": False}
    alone = "".join(client.generate(MODEL, **fields))
    handle, queue = client.start_request(MODEL, best_of=3, **fields)
    assert [warning.field for warning in queue.request.warnings] == ["config.best_of"]
    assert read(queue)[1] == alone
    client.release_request(handle)


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"n": 3, "best_of": 2}, "best_of"), ({"length_penalty": 2.0}, "length_penalty")],
)
def test_what_ranks_nothing_is_refused(client: Client, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        client.start_request(MODEL, **fields, **SAMPLED)
    assert caught.value.reason == "INVALID_FIELD"
