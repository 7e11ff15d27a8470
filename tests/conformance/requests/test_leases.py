"""Section 2, leases: what becomes of requests that nobody is there for."""

from __future__ import annotations

from typing import Any

import pytest
from headrace import Client, NotFoundError
from headrace.types import FinishReason
from headrace_proto.v1 import request_pb2
from support.clocks.waiting import DEADLINES, wait_until
from support.contract.answers import LONG
from support.contract.places import LONG_MODEL, MODEL
from support.servers.wire import Wire


def _lease(running: float, ended: float) -> dict[str, object]:
    parts = {"running": running, "ended": ended}
    return {name: {"seconds": int(value), "nanos": round(value % 1 * 1e9)} for name, value in parts.items()}


def test_a_request_without_readers_is_stopped_and_then_released(wire: Wire) -> None:
    """Its end is seen before it is gone, if the machine is not too busy to look."""
    for ended in DEADLINES[1:4]:
        config = {**LONG, "max_new_tokens": 9000, "lease": _lease(0.2, ended)}
        handle = wire.start(LONG_MODEL, [1, 2], config=config).handle
        ends = _ends_until_gone(wire, handle)
        with pytest.raises(NotFoundError):
            wire.call("GetRequest", handle=handle)
        if ends:
            break
    assert ends[0].finish_reason == request_pb2.FINISH_REASON_LEASE_EXPIRED
    assert ends[0].status == request_pb2.GENERATE_STATUS_INTERRUPTED


def _ends_until_gone(wire: Wire, handle: str) -> list[Any]:
    ends = []

    def gone() -> bool:
        state = wire.state(handle)
        if state is not None and state.sequences[0].HasField("end"):
            ends.append(state.sequences[0].end)
        return state is None

    wait_until(gone, "the request is still there")
    return ends


def test_the_lease_in_force_is_shown(client: Client) -> None:
    _, queue = client.start_request(MODEL, ids=[1], max_new_tokens=1)
    assert queue.request.effective_config["lease"] == {"running": 60.0, "ended": 600.0}
    _, queue = client.start_request(MODEL, ids=[1], max_new_tokens=1, lease={"running": 0, "ended": 30})
    assert queue.request.effective_config["lease"] == {"running": 3600.0, "ended": 30.0}


def test_a_request_tells_when_its_lease_runs_out(wire: Wire) -> None:
    config = {**LONG, "max_new_tokens": 1, "lease": _lease(1000, 2000)}
    handle = wire.start(MODEL, [1, 2], config=config).handle
    wire.call("SyncRequest", handle=handle)
    state = wire.state(handle)
    finished = state.sequences[0].stat.finished_time.ToSeconds()
    assert 1999 <= state.lease_expires.ToSeconds() - finished < 2030
    answer = wire.call("GetRequest", handle=handle).request
    assert answer.attached == 0
    assert answer.lease_expires.ToNanoseconds() > state.lease_expires.ToNanoseconds()


def test_an_unread_queue_of_a_living_client_is_not_taken_away(client: Client) -> None:
    """The client is there from the start, read or not."""
    pauses = {"logits_processors": [{"name": "pause", "arguments": [0.006]}]}
    _, queue = client.start_request(MODEL, ids=[1, 2], max_new_tokens=200, lease={"running": 1}, **pauses, **LONG)
    wait_until(lambda: not client.list_requests(running_only=True), "the request does not end")
    wait_until(lambda: queue.GeneratedLength() == 200, "its last tokens do not arrive")
    elements = queue.Get()
    assert elements is not None
    assert len(elements.ids_from_generate) == 200
    assert queue.finish_reason is FinishReason.MAX_LENGTH
    stat = queue.RequestStatInfo()
    assert (stat["finished_time"] or 0) - (stat["arrival_time"] or 0) > 1000, "the lease would not have run out"
