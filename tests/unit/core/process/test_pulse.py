"""A core answers inside a step with how far it is, from its process and from a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

from headrace_engine.commands import AddSequence, CorePlan, Ping
from headrace_engine.core.link import LinkClosed
from headrace_engine.core.pulse import Pulse
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.engine.models.core_link import CoreLauncher
from headrace_engine.messages import Pong
from headrace_engine.process import launch_thread
from support.clocks.waiting import LIMIT
from support.core.simulated import GREEDY, SimulatedRunner, make_plan
from unit.core.process.test_process import Front, front, in_process, launchers  # noqa: F401


class PickyLink:
    """Takes so many answers."""

    def __init__(self, count: int) -> None:
        self.answers: list[int] = []
        self.closed = threading.Event()
        self._count = count

    def answer(self, progress: int) -> None:
        if len(self.answers) == self._count:
            self.closed.set()
            raise LinkClosed
        self.answers.append(progress)


class CountingRunner(SimulatedRunner):
    """Has done more at each look."""

    looks = 0
    interrupted = False

    @property
    def progress(self) -> int:
        self.looks += 1
        return self.looks

    def interrupt(self) -> None:
        self.interrupted = True


def test_progress_is_reported_until_unheard_then_interrupted() -> None:
    link, runner = PickyLink(3), CountingRunner(make_plan())
    with Pulse(link, runner, interval=0.001):  # type: ignore[arg-type]
        assert link.closed.wait(LIMIT)
    assert link.answers == [1, 2, 3]
    assert runner.interrupted


def test_an_ending_core_does_not_touch_its_runner() -> None:
    link, runner = PickyLink(10**9), CountingRunner(make_plan())
    with Pulse(link, runner, interval=0.001):  # type: ignore[arg-type]
        while not link.answers:
            pass
    looks = runner.looks
    assert not threading.Event().wait(0.02)
    assert runner.looks == looks
    assert not runner.interrupted


def answers(front: Front) -> list[Pong]:  # noqa: F811
    """All so far."""
    return [message for message in front.messages if isinstance(message, Pong)]


async def pongs(front: Front, link: object, count: int) -> list[Pong]:  # noqa: F811
    """All answers, with those to further pings, sent one after the other."""
    for _ in range(count):
        before = len(answers(front))
        link.send(Ping(before + 1))  # type: ignore[attr-defined]
        await front.until(partial(lambda known: len(answers(front)) > known, before))
    return answers(front)


async def until_inside(front: Front, link: object) -> None:  # noqa: F811
    """Ask until the core is inside its step."""
    while (await pongs(front, link, 1))[-1].progress is None:
        pass


class Waiting(SimulatedRunner):
    """Counts while it waits in the step that computes id 667, and is stuck in that of 666, until it is let go."""

    gate = threading.Event()
    done = 0

    @property
    def progress(self) -> int:
        return self.done

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        if any(667 in step.token_ids for step in steps):
            while not self.gate.wait(0.001):
                self.done += 1
        if any(666 in step.token_ids for step in steps):
            self.gate.wait()
        return super().run(steps)


def make_waiting(plan: CorePlan) -> Waiting:
    return Waiting(plan)


async def test_a2_a_thread_tells_of_progress_inside_a_step(front: Front) -> None:  # noqa: F811
    Waiting.gate.clear()
    launcher: CoreLauncher = lambda *given: launch_thread(*given, make=make_waiting)  # noqa: E731
    link = front.launch(launcher)
    await front.ready()
    try:
        link.send(AddSequence(1, (667,), GREEDY, 2))
        await until_inside(front, link)
        seen = await pongs(front, link, 3)
        assert seen[-1].progress > seen[-3].progress  # type: ignore[operator]
    finally:
        Waiting.gate.set()
    await front.until(lambda: len(front.tokens(1)) == 2)


async def test_b1_a_stuck_thread_answers_and_cannot_be_killed(
    front: Front,  # noqa: F811
) -> None:
    Waiting.gate.clear()
    launcher: CoreLauncher = lambda *given: launch_thread(*given, make=make_waiting)  # noqa: E731
    link = front.launch(launcher)
    await front.ready()
    try:
        link.send(AddSequence(1, (666,), GREEDY, 2))
        await until_inside(front, link)
        seen = await pongs(front, link, 3)
        assert len({pong.progress for pong in seen[-3:]}) == 1
        assert "cannot be killed" in link.kill()
    finally:
        Waiting.gate.set()
    await asyncio.wait_for(link.close(), LIMIT)


async def test_a2_a_process_tells_of_progress_inside_a_step(front: Front) -> None:  # noqa: F811
    link = front.launch(in_process("slow"))
    await front.ready()
    link.send(AddSequence(1, (667,), GREEDY, 2))
    await until_inside(front, link)
    seen = await pongs(front, link, 3)
    assert seen[-1].progress > seen[-3].progress  # type: ignore[operator]
    assert link.kill() == "was killed"


async def test_b1_a_process_that_is_stuck_answers_the_same(front: Front) -> None:  # noqa: F811
    link = front.launch(in_process("deaf"))
    await front.ready()
    link.send(AddSequence(1, (666,), GREEDY, 2))
    await until_inside(front, link)
    seen = await pongs(front, link, 3)
    assert len({pong.progress for pong in seen[-3:]}) == 1
    link.kill()
