"""Progress in an engine's log: an operator sees life, and not too much of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from headrace_engine.model_types import ModelPhase, ModelProgress, ModelState, ModelView
from headrace_engine.service.program.announcer import Announcer
from headrace_engine.service.program.step_log import INTERVAL, StepLog
from support.clocks.clock import FakeClock, settle
from support.scripted.engine import ScriptedEngine


class Time(FakeClock):
    """A clock whose sleeper wakes when the test lets an interval pass."""

    def __init__(self) -> None:
        super().__init__()
        self._asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        assert seconds == INTERVAL
        self._asleep.clear()
        await self._asleep.wait()

    async def pass_interval(self, seconds: float = INTERVAL) -> None:
        self.advance(seconds)
        self._asleep.set()
        await settle()


@pytest.fixture
async def time(log: list[Any]):
    """The time of a log of steps that runs."""
    time = Time()
    time.steps = StepLog(time, time.sleep)
    task = asyncio.create_task(time.steps.run())
    await settle()
    yield time
    task.cancel()
    await asyncio.wait([task])


def view(state: ModelState, phase: ModelPhase | None = None, done: int = 0, total: int | None = None) -> ModelView:
    progress = None if phase is None else ModelProgress(phase, done, total)
    return ModelView("smol", "e1", state, ModelState.RUNNING, 0.0, progress=progress)


def logged(log: list[Any]) -> list[dict[str, Any]]:
    kind = {"event": "model_progress", "log_level": "info", "model": "smol"}
    assert all(kind.items() <= event.items() for event in log)
    return [{name: event[name] for name in event if name not in kind} for event in log]


async def test_a_lasting_step_is_logged_again_with_its_seconds(time, log):
    time.steps.note(view(ModelState.STARTING, ModelPhase.WARMING_UP))
    await time.pass_interval()
    await time.pass_interval()
    assert logged(log) == [{"phase": "WARMING_UP", "seconds": seconds} for seconds in (0.0, 3.0, 6.0)]


async def test_however_often_sizes_change_there_is_a_line_an_interval(time, log):
    for done in range(100):
        time.steps.note(view(ModelState.STARTING, ModelPhase.LOADING, done, 100))
    await time.pass_interval()
    assert logged(log) == [
        {"phase": "LOADING", "bytes_total": 100, "seconds": 0.0},
        {"phase": "LOADING", "bytes_done": 99, "bytes_total": 100, "seconds": 3.0},
    ]


async def test_a_core_that_has_said_nothing_yet_is_told_of(time, log):
    time.steps.note(view(ModelState.STARTING))
    assert log == []
    await time.pass_interval()
    assert logged(log) == [{"phase": "STARTING", "seconds": 3.0}]


async def test_each_step_begins_anew(time, log):
    time.steps.note(view(ModelState.STARTING, ModelPhase.LOADING))
    time.advance(1)
    time.steps.note(view(ModelState.STARTING, ModelPhase.WARMING_UP))
    await time.pass_interval(INTERVAL - 1)
    assert [(line["phase"], line["seconds"]) for line in logged(log)] == [("LOADING", 0), ("WARMING_UP", 0)]


async def test_what_is_done_is_told_no_more(time, log):
    time.steps.note(view(ModelState.STARTING, ModelPhase.WARMING_UP))
    time.steps.note(view(ModelState.RUNNING))
    await time.pass_interval()
    assert [line["seconds"] for line in logged(log)] == [0]


async def test_an_announcer_tells_of_steps(engine: ScriptedEngine, log: list[Any], time: Time) -> None:
    announcing = asyncio.create_task(Announcer(engine, StepLog(time, time.sleep)).run())
    await settle()
    engine.set_state(ModelState.STARTING, progress=ModelProgress(ModelPhase.LOADING, 5, 10))
    await settle()
    assert [event["event"] for event in log[-2:]] == ["model_state", "model_progress"]
    announcing.cancel()
    await asyncio.wait([announcing])
