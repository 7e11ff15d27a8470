"""Embed: its inputs are requests, which may end in other ways than by their states."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from headrace_engine.errors import NotFound, ResourceExhausted
from headrace_engine.ipc.step_output import PooledPiece
from headrace_engine.request_types import Embedding, Pooling
from headrace_engine.result_types import FinishReason
from support.clocks.clock import settle
from support.engine.rig import Rig


def embedding(rig: Rig, count: int) -> asyncio.Task[list[Embedding]]:
    """A call with so many inputs of three ids."""
    inputs = [rig.request(pooling=Pooling.LAST) for _ in range(count)]
    return asyncio.create_task(rig.engine.embed(inputs, normalize=False))


def compute(rig: Rig, number: int) -> None:
    """Give the input that was begun last its states."""
    key = rig.added().key
    piece = PooledPiece(key, 2, 3, array("d", [number, 0.5]).tobytes())
    rig.core.step({key: 9}, ended={key: FinishReason.MAX_LENGTH}, pooled=[piece])


@pytest.mark.parametrize("limits", [{"max_waiting": 0}, {"max_result_bytes": 4000}])
async def test_inputs_beyond_the_room_there_is_wait_for_others(rig: Rig, limits: dict[str, Any]) -> None:
    await rig.run(max_batch=1, **limits)
    call = embedding(rig, 5)
    for number in range(5):
        await settle()
        assert len(rig.core.added) == number + 1
        compute(rig, number)
    assert [list(each.values) for each in await call] == [[number, 0.5] for number in range(5)]
    assert rig.engine.list_requests("")[0] == []


async def test_an_input_that_others_leave_no_room_is_refused(rig: Rig) -> None:
    await rig.run(max_batch=1, max_waiting=0)
    await rig.start()
    with pytest.raises(ResourceExhausted):
        await embedding(rig, 2)


async def test_an_input_stopped_by_its_handle_is_no_fault_to_retry(rig: Rig) -> None:
    await rig.run()
    call = embedding(rig, 2)
    await settle()
    first = rig.engine.list_requests("")[0][-1]
    await rig.engine.stop_request(first.request.handle, "")
    with pytest.raises(NotFound, match="was stopped") as caught:
        await call
    assert caught.value.reason == "UNKNOWN_REQUEST"
    assert rig.engine.list_requests("")[0] == []
