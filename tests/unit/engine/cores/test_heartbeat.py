"""A core that answers no more is noticed, and one that is only slow is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from headrace_engine.engine.cores.heartbeat import Heartbeat
from headrace_engine.ipc.commands import Ping
from support.clocks.clock import settle

LOOKS = 10


class Rig:
    """A heartbeat of 30 s whose time passes look by look."""

    def __init__(self) -> None:
        self.pings: list[int] = []
        self.silent = 0
        self.slept: list[float] = []
        self._wake: asyncio.Future[None] | None = None
        self.heartbeat = Heartbeat(30.0, self._send, self._silent, self._sleep)

    async def looks(self, count: int = 1) -> None:
        """Let the time between so many looks pass."""
        for _ in range(count):
            if self._wake is not None and not self._wake.done():
                self._wake.set_result(None)
            await settle()

    async def start(self) -> None:
        self.heartbeat.start()
        await settle()

    def _send(self, ping: Ping) -> None:
        self.pings.append(ping.number)

    def _silent(self) -> None:
        self.silent += 1

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.heartbeat.stop()
    await settle()


async def test_a_core_that_answers_is_asked_again_and_again(rig: Rig) -> None:
    await rig.start()
    for number in range(1, 50):
        assert rig.pings == list(range(1, number + 1))
        rig.heartbeat.answer(number)
        await rig.looks()
    assert rig.silent == 0


async def test_silence_is_told_once_when_the_limit_is_over(rig: Rig) -> None:
    await rig.start()
    await rig.looks(LOOKS - 1)
    assert rig.silent == 0
    await rig.looks(3)
    assert rig.silent == 1
    assert rig.slept == [3.0] * LOOKS
    assert rig.pings == [1]


async def test_an_answer_just_in_time_gives_the_whole_limit_again(rig: Rig) -> None:
    """A long step delays the answer: that is no silence."""
    await rig.start()
    await rig.looks(LOOKS - 1)
    rig.heartbeat.answer(1)
    await rig.looks(LOOKS)
    assert (rig.silent, rig.pings) == (0, [1, 2])
    await rig.looks()
    assert rig.silent == 1


async def test_what_the_last_core_owed_is_not_owed_by_the_next(rig: Rig) -> None:
    await rig.start()
    await rig.looks(LOOKS - 1)
    await rig.start()
    await rig.looks(LOOKS - 1)
    assert (rig.silent, rig.pings) == (0, [1, 2])


async def test_a_late_answer_of_the_last_core_is_none_of_the_next(rig: Rig) -> None:
    await rig.start()
    await rig.start()
    rig.heartbeat.answer(1)
    await rig.looks(LOOKS)
    assert rig.silent == 1


async def test_nobody_is_asked_after_the_stop(rig: Rig) -> None:
    await rig.start()
    rig.heartbeat.stop()
    await rig.looks(LOOKS + 1)
    assert (rig.silent, rig.pings) == (0, [1])


async def test_a2_a_step_that_gets_on_is_waited_for(rig: Rig) -> None:
    """However long it lasts: each answer tells of more than the one before, if only within the limit."""
    await rig.start()
    for number in range(1, 20):
        rig.heartbeat.answer(number, progress=number // 8)
        await rig.looks()
    assert rig.silent == 0
    assert rig.pings == list(range(1, 21))


async def test_b1_a_step_that_gets_no_further_is_none_that_is_slow(rig: Rig) -> None:
    """It answers, and what it answers is the same all the time."""
    await rig.start()
    rig.heartbeat.answer(1, progress=7)
    await rig.looks()
    for number in range(2, 2 + LOOKS):
        assert rig.silent == 0
        rig.heartbeat.answer(number, progress=7)
        await rig.looks()
    assert rig.silent == 1


async def test_the_next_cores_progress_is_compared_with_nothing(rig: Rig) -> None:
    await rig.start()
    rig.heartbeat.answer(1, progress=7)
    await rig.looks()
    await rig.start()
    await rig.looks(LOOKS - 1)
    rig.heartbeat.answer(rig.pings[-1], progress=7)
    await rig.looks(LOOKS - 1)
    assert rig.silent == 0
