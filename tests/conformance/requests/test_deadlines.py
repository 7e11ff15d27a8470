"""Sections 2 and 4: priorities and deadlines."""

from __future__ import annotations

import pytest
from headrace import Client, DeadlineError
from headrace.types import FinishReason, GenerateStatus
from support.clocks.waiting import DEADLINES
from support.contract.answers import ids_of
from support.contract.places import LONG_MODEL


def test_priority_lets_a_request_overtake(client: Client) -> None:
    """Where those that run are at their ends before both others wait, it is tried again."""
    for _ in range(10):
        running = [client.start_request(LONG_MODEL, ids=[1, 2], ignore_eos=True)[0] for _ in range(2)]
        low = client.start_request(LONG_MODEL, ids=[1], max_new_tokens=300, ignore_eos=True)[1]
        high = client.start_request(LONG_MODEL, ids=[1], max_new_tokens=1, ignore_eos=True, priority=5)[1]
        client.stop_request(running[0])
        assert high.Get() is not None
        first, second = (client.get_request(handle).sequences[0] for handle in running)
        begun, overtaken = (queue.RequestStatInfo()["scheduled_time"] for queue in (high, low))
        client.stop_request(running[1])
        client.stop_request(low.handle)
        ended = second.stat["finished_time"]
        if first.finish_reason is FinishReason.STOPPED and (ended is None or ended >= begun):
            break
    assert overtaken is None or overtaken >= begun


def test_a_deadline_ends_a_request_with_what_it_has(client: Client) -> None:
    cycle = _long_ids(client, max_new_tokens=200, ignore_eos=True, do_sample=False)
    never = next(token for token in range(384) if token not in cycle)
    for deadline in DEADLINES[:3]:  # On a busy machine a short one may end before the first token.
        handle, queue = client.start_request(
            LONG_MODEL,
            ids=[1, 2],
            max_new_tokens=10_000,
            eos_token_id=[never],
            logit_bias={never: -100.0},
            do_sample=False,
            deadline=deadline,
        )
        if ids := ids_of(queue):
            break
    assert queue.finish_reason is FinishReason.DEADLINE
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert 0 < len(ids) < 10_000
    assert ids[:200] == cycle[: len(ids)]
    stat = queue.RequestStatInfo()
    assert stat["finished_time"] - stat["arrival_time"] >= 1000 * deadline
    client.release_request(handle)


def test_a_deadline_that_rates_rule_out_is_refused_at_once(client: Client) -> None:
    _long_ids(client, max_new_tokens=50, ignore_eos=True)
    before = len(client.list_requests(LONG_MODEL))
    with pytest.raises(DeadlineError, match="for at least 10000 new tokens") as refusal:
        client.start_request(LONG_MODEL, ids=[1, 2], max_new_tokens=10_000, ignore_eos=True, deadline=0.001)
    assert refusal.value.reason == "DEADLINE_NOT_MET"
    assert len(client.list_requests(LONG_MODEL)) == before
    assert len(_long_ids(client, max_new_tokens=2, ignore_eos=True, deadline=600)) == 2


def _long_ids(client: Client, **fields: object) -> list[int]:
    handle, queue = client.start_request(LONG_MODEL, ids=[1, 2], **fields)  # type: ignore[arg-type]
    ids = ids_of(queue)
    client.release_request(handle)
    return ids
