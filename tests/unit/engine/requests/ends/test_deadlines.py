"""A deadline ends its request, wherever it stands, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.ipc.messages import StepBegun
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.engine.rig import Rig


def registry(rig: Rig) -> RequestRegistry:
    return rig.engine._registry


async def end_of(rig: Rig, handle: str) -> tuple[FinishReason, GenerateStatus] | None:
    end = (await rig.sequence(handle)).end
    return None if end is None else (end.finish_reason, end.status)


LATE = (FinishReason.DEADLINE, GenerateStatus.FINISHED)


async def test_a_running_request_ends_at_its_deadline_and_not_before(rig: Rig) -> None:
    core = await rig.run()
    handle = (await rig.start(config={"deadline": 5.0})).handle
    core.step({rig.added().key: 9})
    rig.pass_time(4.99)
    assert await end_of(rig, handle) is None
    rig.pass_time(0.01)
    assert await end_of(rig, handle) == LATE
    assert core.ended == [rig.added().key]


async def test_tokens_until_then_are_readable_and_later_ones_dropped(rig: Rig) -> None:
    core = await rig.run()
    handle = (await rig.start(config={"deadline": 5.0})).handle
    key = rig.added().key
    core.step({key: 9})
    core.step({key: 10})
    rig.pass_time(5)
    core.step({key: 11})
    (result,) = await rig.read_all(handle)
    assert result.elements is not None
    assert result.elements.token_ids == [9, 10]
    assert result.end is not None
    assert result.end.finish_reason is FinishReason.DEADLINE


async def test_a_request_that_waits_ends_too_and_is_never_computed(rig: Rig) -> None:
    core = await rig.run(max_batch=1)
    await rig.start()
    core.step(scheduled={rig.added().key: 0})
    late = await rig.start(config={"deadline": 1.0})
    rig.pass_time(1)
    assert await end_of(rig, late.handle) == LATE
    assert core.ended == [rig.added().key]


async def test_one_that_ended_in_time_keeps_its_end(rig: Rig) -> None:
    core = await rig.run()
    handle = (await rig.start(config={"deadline": 5.0})).handle
    key = rig.added().key
    core.step({key: 2}, ended={key: FinishReason.EOS})
    rig.pass_time(5)
    assert await end_of(rig, handle) == (FinishReason.EOS, GenerateStatus.FINISHED)
    assert core.ended == []


async def test_it_runs_from_the_arrival_and_not_from_the_first_step(rig: Rig) -> None:
    core = await rig.run()
    handle = (await rig.start(config={"deadline": 5.0})).handle
    rig.pass_time(4)
    core.step({rig.added().key: 9}, scheduled={rig.added().key: 0})
    rig.pass_time(1)
    assert await end_of(rig, handle) == LATE


async def test_it_goes_on_while_a_core_is_replaced(rig: Rig) -> None:
    """Whoever is late by then is not given to the new core."""
    core = await rig.run()
    late = await rig.start(config={"deadline": 5.0})
    other = await rig.start()
    core.say(StepBegun([core.added[1].key]))
    rig.launcher.ready_at_once = None
    core.die()
    core.end_close()
    await settle()
    rig.pass_time(5)
    assert await end_of(rig, late.handle) == LATE
    rig.core.ready()
    await settle()
    assert [added.prompt for added in rig.core.added] == [(5, 6, 7)]
    assert await end_of(rig, other.handle) is None


async def test_without_one_a_request_takes_its_time(rig: Rig) -> None:
    await rig.run()
    handle = (await rig.start(config={"lease": None})).handle
    request = registry(rig).find(handle, "")
    request.arrive()
    rig.pass_time(1e6)
    assert await end_of(rig, handle) is None
    request.leave()


async def test_a_released_request_is_let_go(rig: Rig) -> None:
    await rig.run()
    handle = (await rig.start(config={"deadline": 1e8})).handle
    assert len(registry(rig).deadlines) == 1
    await rig.engine.release_request(handle, "")
    assert len(registry(rig).deadlines) == 0


async def test_the_effective_config_shows_it(rig: Rig) -> None:
    await rig.run()
    accepted = await rig.start(config={"deadline": 2.5})
    assert accepted.effective_config is not None
    assert accepted.effective_config.deadline == 2.5


@pytest.mark.parametrize("ended", [False, True])
async def test_a_hand_over_has_what_is_left_of_it_from_its_own_arrival(rig: Rig, ended: bool) -> None:
    await rig.run()
    resume = (ResumedSequence(0, delivered_ids=[9, 2] if ended else [9], ended=ended),)
    fields: dict[str, Any] = {"request_id": "r1", "handover": 1, "resume": resume}
    handle = (await rig.start(config={"deadline": 2.0}, **fields)).handle
    rig.pass_time(2)
    expected = (FinishReason.EOS, GenerateStatus.FINISHED) if ended else LATE
    assert await end_of(rig, handle) == expected


async def test_it_ends_by_itself_without_anybody_looking(rig: Rig) -> None:
    """The engine's own timer, on a clock that has moved on."""
    await rig.run()
    handle = (await rig.start(config={"deadline": 0.02})).handle
    rig.clock.advance(0.02)
    request = registry(rig).find(handle, "")
    await request.wait_end()
    assert await end_of(rig, handle) == LATE


async def test_an_engine_that_closes_rings_no_more(rig: Rig) -> None:
    await rig.run()
    await rig.start(config={"deadline": 5.0})
    await rig.engine.close()
    assert registry(rig).deadlines._timer is None
