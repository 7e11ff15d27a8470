"""Verbs in progress: joined, cut, given up, begun again."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.engine.work.joined_calls import JoinedCalls
from headrace_engine.errors import BadModel, FailedPrecondition
from support.clocks.clock import settle


class Work:
    """Work that is done when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done = asyncio.Event()
        self.ended = False
        self._error = error

    async def __call__(self) -> None:
        try:
            await self.done.wait()
        finally:
            self.ended = True
        if self._error is not None:
            raise self._error


@pytest.fixture
def verbs() -> JoinedCalls:
    return JoinedCalls(lambda: FailedPrecondition("another call ended this one"))


async def test_everyone_who_joins_waits_for_the_same_work(verbs: JoinedCalls) -> None:
    work = Work()
    verbs.begin("start", work())
    joined = [asyncio.create_task(verbs.join("start")) for _ in range(3)]
    await settle()
    assert verbs.busy("start")
    assert not any(task.done() for task in joined)
    work.done.set()
    await asyncio.gather(*joined)
    assert not verbs.busy("start")


async def test_everyone_who_joins_learns_why_it_failed(verbs: JoinedCalls) -> None:
    work = Work(BadModel("no such file"))
    verbs.begin("install", work())
    joined = [asyncio.create_task(verbs.join("install")) for _ in range(2)]
    await settle()
    work.done.set()
    for task in joined:
        with pytest.raises(BadModel, match="no such file"):
            await task


async def test_a_failure_that_nobody_waits_for_is_not_complained_of(verbs: JoinedCalls) -> None:
    work = Work(BadModel("no such file"))
    verbs.begin("install", work())
    work.done.set()
    await settle()
    assert not verbs.busy("install")


async def test_who_leaves_ends_nothing(verbs: JoinedCalls) -> None:
    work = Work()
    verbs.begin("start", work())
    leaves, stays = (asyncio.create_task(verbs.join("start")) for _ in range(2))
    await settle()
    leaves.cancel()
    await settle()
    assert not work.ended
    work.done.set()
    await stays
    assert leaves.cancelled()


async def test_work_that_is_given_up_is_told_to_who_waits_for_it(verbs: JoinedCalls) -> None:
    work = Work()
    verbs.begin("start", work())
    joined = asyncio.create_task(verbs.join("start"))
    await settle()
    verbs.cancel("start")
    assert not verbs.busy("start")
    with pytest.raises(FailedPrecondition, match="another call"):
        await joined
    assert work.ended


async def test_work_that_is_given_up_before_it_began_is_told_too(verbs: JoinedCalls) -> None:
    work = Work()
    verbs.begin("start", work())
    joined = asyncio.create_task(verbs.join("start"))
    await asyncio.sleep(0)
    verbs.cancel("start")
    with pytest.raises(FailedPrecondition):
        await joined


async def test_a_verb_begun_again_runs_until_its_own_work_is_done(verbs: JoinedCalls) -> None:
    first, second = Work(), Work()
    verbs.begin("start", first())
    await settle()
    verbs.cancel("start")
    verbs.begin("start", second())
    await settle()
    assert first.ended
    assert verbs.busy("start")
    second.done.set()
    await verbs.join("start")
    assert not verbs.busy("start")


async def test_joining_or_cancelling_what_is_not_running_does_nothing(verbs: JoinedCalls) -> None:
    await verbs.join("stop")
    verbs.cancel("stop")
    assert not verbs.busy("stop")
