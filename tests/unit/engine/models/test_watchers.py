"""Streams of model views: every state, of the progress the newest, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from headrace_engine.engine.models.watchers import INTERVAL, Watchers
from headrace_engine.model_types import ModelPhase, ModelProgress, ModelState, ModelView
from support.clocks.clock import settle


class Pause:
    """Stands for sleeping: goes on when the test says so, and notes for how long it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._turn = asyncio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._turn.acquire()

    def over(self) -> None:
        self._turn.release()


def view(state: ModelState, name: str = "smol", done: int | None = None) -> ModelView:
    progress = None if done is None else ModelProgress(ModelPhase.LOADING, done, 10)
    return ModelView(name, "e1", state, ModelState.RUNNING, 0.0, progress=progress)


class Collected:
    """Everything that a watcher delivered so far."""

    def __init__(self, views: AsyncGenerator[ModelView, None]) -> None:
        self.views: list[ModelView] = []
        self.task = asyncio.create_task(self._run(views))

    async def _run(self, views: AsyncGenerator[ModelView, None]) -> None:
        async for each in views:
            self.views.append(each)

    @property
    def states(self) -> list[ModelState]:
        return [each.state for each in self.views]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_the_present_view_comes_first_and_then_the_changes() -> None:
    watchers = Watchers(Pause())
    seen = Collected(watchers.watch("smol", lambda: [view(ModelState.INITIAL)]))
    await settle()
    assert seen.states == [ModelState.INITIAL]
    watchers.publish(view(ModelState.STARTING))
    await settle()
    assert seen.states == [ModelState.INITIAL, ModelState.STARTING]
    await seen.stop()


async def test_all_states_are_kept_and_only_the_newest_progress() -> None:
    pause = Pause()
    watchers = Watchers(pause)
    seen = Collected(watchers.watch("smol", lambda: [view(ModelState.INITIAL)]))
    await settle()
    watchers.publish(view(ModelState.STARTING, done=0))
    await settle()
    for done in range(1, 9):
        watchers.publish(view(ModelState.STARTING, done=done))
    watchers.publish(view(ModelState.RUNNING))
    watchers.publish(view(ModelState.STOPPING))
    await settle()
    assert len(seen.views) == 2
    pause.over()
    await settle()
    assert [(each.state, each.progress and each.progress.bytes_done) for each in seen.views[1:]] == [
        (ModelState.STARTING, 0),
        (ModelState.STARTING, 8),
        (ModelState.RUNNING, None),
        (ModelState.STOPPING, None),
    ]
    assert set(pause.asked) == {INTERVAL}
    await seen.stop()


async def test_ends_when_the_model_is_released() -> None:
    watchers = Watchers(Pause())
    seen = Collected(watchers.watch("smol", lambda: [view(ModelState.STOPPED)]))
    await settle()
    watchers.publish(view(ModelState.RELEASED))
    watchers.publish(view(ModelState.INSTALLING))  # another model of that name
    await seen.task
    assert seen.states == [ModelState.STOPPED, ModelState.RELEASED]


async def test_ends_at_once_if_released_before_the_first_view() -> None:
    seen = Collected(Watchers(Pause()).watch("smol", list))
    await seen.task
    assert seen.views == []


async def test_one_model_s_watcher_hears_of_no_other() -> None:
    watchers = Watchers(Pause())
    seen = Collected(watchers.watch("smol", lambda: [view(ModelState.INITIAL)]))
    await settle()
    watchers.publish(view(ModelState.RUNNING, "other"))
    watchers.publish(view(ModelState.RUNNING))
    await settle()
    assert [each.model_name for each in seen.views] == ["smol", "smol"]
    await seen.stop()


async def test_a_watcher_of_all_survives_a_release() -> None:
    pause = Pause()
    watchers = Watchers(pause)
    seen = Collected(watchers.watch("", list))
    await settle()
    watchers.publish(view(ModelState.RELEASED, "a"))
    await settle()
    pause.over()
    watchers.publish(view(ModelState.INSTALLING, "b"))
    await settle()
    assert [(each.model_name, each.state) for each in seen.views] == [
        ("a", ModelState.RELEASED),
        ("b", ModelState.INSTALLING),
    ]
    await seen.stop()


async def test_watchers_do_not_disturb_each_other() -> None:
    watchers = Watchers(Pause())
    gone = Collected(watchers.watch("smol", lambda: [view(ModelState.INITIAL)]))
    stays = Collected(watchers.watch("smol", lambda: [view(ModelState.INITIAL)]))
    await settle()
    await gone.stop()
    watchers.publish(view(ModelState.STARTING))
    await settle()
    assert (len(gone.views), len(stays.views)) == (1, 2)
    await stays.stop()
