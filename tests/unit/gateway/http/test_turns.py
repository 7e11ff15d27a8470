"""Turns at what only a few may do at once."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.turns import Turns
from support.clocks.waiting import ends, eventually


class Work:
    """Begins work in turns, and ends it when it is told to."""

    def __init__(self, turns: Turns) -> None:
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._turns = turns
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, name: str) -> None:
        """Asks for a turn of the party whose name begins so."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._work(name))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        """Ends what has begun."""
        self._ends[name].set()
        async with ends(f"{name} does not end"):
            await self.tasks[name]
        await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self._turns.turn(name[0]):
            self.begun.append(name)
            await self._ends[name].wait()


async def test_parties_have_turns_however_many_each_waits_for() -> None:
    work = Work(Turns(1, 100))
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        await work.ask(name)
    while len(work.begun) < 7:
        await work.end(work.begun[-1])
    assert work.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    await work.end("a4")
    await work.ask("d1")
    assert work.begun[-1] == "d1"
    await work.end("d1")


async def test_one_that_leaves_gives_up_its_turn() -> None:
    """While it waits, and just when its turn has come."""
    work = Work(Turns(1, 100))
    for name in ("a1", "a2", "b1", "c1"):
        await work.ask(name)
    work.tasks["a2"].cancel()
    await asyncio.sleep(0)
    work._ends["a1"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    work.tasks["b1"].cancel()
    await eventually(lambda: "c1" in work.begun, "nobody has the turn")
    await work.end("c1")
    await work.ask("d1")
    assert work.begun[-1] == "d1"
    await work.end("d1")


async def test_what_a_party_lets_wait_is_bounded() -> None:
    turns = Turns(1, 4)
    work = Work(turns)
    for name in ("a1", "a2", "a3", "a4"):
        await work.ask(name)
    with pytest.raises(Failure) as caught:
        async with turns.turn("a"):
            pass
    assert caught.value.code == HTTPStatus.TOO_MANY_REQUESTS
    assert caught.value.retry_after
    await work.ask("b1")
    for name in ("a1", "a2", "b1", "a3", "a4"):
        await work.end(name)
    assert work.begun == ["a1", "a2", "b1", "a3", "a4"]
