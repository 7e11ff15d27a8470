"""A deadline ends its request, wherever it stands, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.engine.request_book import RequestBook
from headrace_engine.messages import StepBegun
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus
from unit.engine.bench import Bench
from unit.engine.clock import settle


def book(bench: Bench) -> RequestBook:
    return bench.engine._book


async def end_of(bench: Bench, handle: str) -> tuple[FinishReason, GenerateStatus] | None:
    end = (await bench.sequence(handle)).end
    return None if end is None else (end.finish_reason, end.status)


LATE = (FinishReason.DEADLINE, GenerateStatus.FINISHED)


async def test_a_running_request_ends_at_its_deadline_and_not_before(bench: Bench) -> None:
    core = await bench.run()
    handle = (await bench.start(config={"deadline": 5.0})).handle
    core.step({bench.added().key: 9})
    bench.pass_time(4.99)
    assert await end_of(bench, handle) is None
    bench.pass_time(0.01)
    assert await end_of(bench, handle) == LATE
    assert core.ended == [bench.added().key]


async def test_what_it_generated_until_then_is_readable_and_what_comes_later_is_dropped(bench: Bench) -> None:
    core = await bench.run()
    handle = (await bench.start(config={"deadline": 5.0})).handle
    key = bench.added().key
    core.step({key: 9})
    core.step({key: 10})
    bench.pass_time(5)
    core.step({key: 11})
    (result,) = await bench.read_all(handle)
    assert result.elements is not None
    assert result.elements.token_ids == [9, 10]
    assert result.end is not None
    assert result.end.finish_reason is FinishReason.DEADLINE


async def test_a_request_that_waits_ends_too_and_is_never_computed(bench: Bench) -> None:
    core = await bench.run(max_batch=1)
    await bench.start()
    core.step(scheduled={bench.added().key: 0})
    late = await bench.start(config={"deadline": 1.0})
    bench.pass_time(1)
    assert await end_of(bench, late.handle) == LATE
    assert core.ended == [bench.added().key]


async def test_one_that_ended_in_time_keeps_its_end(bench: Bench) -> None:
    core = await bench.run()
    handle = (await bench.start(config={"deadline": 5.0})).handle
    key = bench.added().key
    core.step({key: 2}, ended={key: FinishReason.EOS})
    bench.pass_time(5)
    assert await end_of(bench, handle) == (FinishReason.EOS, GenerateStatus.FINISHED)
    assert core.ended == []


async def test_it_runs_from_the_arrival_and_not_from_the_first_step(bench: Bench) -> None:
    core = await bench.run()
    handle = (await bench.start(config={"deadline": 5.0})).handle
    bench.pass_time(4)
    core.step({bench.added().key: 9}, scheduled={bench.added().key: 0})
    bench.pass_time(1)
    assert await end_of(bench, handle) == LATE


async def test_it_goes_on_while_a_core_is_replaced(bench: Bench) -> None:
    """Whoever is late by then is not given to the new core."""
    core = await bench.run()
    late = await bench.start(config={"deadline": 5.0})
    other = await bench.start()
    core.say(StepBegun([core.added[1].key]))
    bench.launcher.ready_at_once = None
    core.die()
    core.end_close()
    await settle()
    bench.pass_time(5)
    assert await end_of(bench, late.handle) == LATE
    bench.core.ready()
    await settle()
    assert [added.prompt for added in bench.core.added] == [(5, 6, 7)]
    assert await end_of(bench, other.handle) is None


async def test_without_one_a_request_takes_its_time(bench: Bench) -> None:
    await bench.run()
    handle = (await bench.start(config={"lease": None})).handle
    request = book(bench).find(handle, "")
    request.arrive()
    bench.pass_time(1e6)
    assert await end_of(bench, handle) is None
    request.leave()


async def test_a_released_request_is_let_go(bench: Bench) -> None:
    await bench.run()
    handle = (await bench.start(config={"deadline": 1e8})).handle
    assert len(book(bench).deadlines) == 1
    await bench.engine.release_request(handle, "")
    assert len(book(bench).deadlines) == 0


async def test_the_effective_config_shows_it(bench: Bench) -> None:
    await bench.run()
    accepted = await bench.start(config={"deadline": 2.5})
    assert accepted.effective_config is not None
    assert accepted.effective_config.deadline == 2.5


@pytest.mark.parametrize("ended", [False, True])
async def test_a_hand_over_has_what_is_left_of_it_from_its_own_arrival(bench: Bench, ended: bool) -> None:
    await bench.run()
    resume = (ResumedSequence(0, delivered_ids=[9, 2] if ended else [9], ended=ended),)
    fields: dict[str, Any] = {"request_id": "r1", "handover": 1, "resume": resume}
    handle = (await bench.start(config={"deadline": 2.0}, **fields)).handle
    bench.pass_time(2)
    expected = (FinishReason.EOS, GenerateStatus.FINISHED) if ended else LATE
    assert await end_of(bench, handle) == expected


async def test_it_ends_by_itself_without_anybody_looking(bench: Bench) -> None:
    """The engine's own timer, on a clock that has moved on."""
    await bench.run()
    handle = (await bench.start(config={"deadline": 0.02})).handle
    bench.clock.advance(0.02)
    request = book(bench).find(handle, "")
    await request.wait_end()
    assert await end_of(bench, handle) == LATE


async def test_an_engine_that_closes_rings_no_more(bench: Bench) -> None:
    await bench.run()
    await bench.start(config={"deadline": 5.0})
    await bench.engine.close()
    assert book(bench).deadlines._timer is None
