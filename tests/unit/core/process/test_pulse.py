"""A core answers inside a step with how far it is, from its process and from a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from headrace_engine.core.link import LinkClosed
from headrace_engine.core.pulse import Pulse
from headrace_engine.engine.cores.core_link import CoreLauncher, CoreLink
from headrace_engine.ipc.commands import AddSequence, Ping
from headrace_engine.ipc.messages import CoreFailed, Pong
from headrace_engine.process import launch_thread
from support.clocks.waiting import comes, ends, wait_until
from support.core.front import Front, in_process
from support.core.held_runner import LONG, STUCK, HeldRunner
from support.core.simulated import GREEDY, SimulatedRunner, make_plan


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


class ToldLink:
    """Notes what it is told before it is cut."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.was_cut = threading.Event()

    def send(self, *messages: object) -> None:
        self.told += messages

    def cut(self) -> None:
        self.was_cut.set()


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
        comes(link.closed, "nobody is told")
    assert link.answers == [1, 2, 3]
    assert runner.interrupted


def test_a_lost_runner_is_reported_and_its_core_cut_off() -> None:
    class LostRunner(SimulatedRunner):
        lost = CoreFailed("BAD_MODEL", "a rank is gone")

    link = ToldLink()
    with Pulse(link, LostRunner(make_plan()), interval=0.001):  # type: ignore[arg-type]
        comes(link.was_cut, "the core is not cut off")
    assert link.told == [LostRunner.lost]


def test_an_ending_core_does_not_touch_its_runner() -> None:
    link, runner = PickyLink(10**9), CountingRunner(make_plan())
    with Pulse(link, runner, interval=0.001):  # type: ignore[arg-type]
        wait_until(lambda: link.answers, "nobody looks")
    looks = runner.looks
    assert not threading.Event().wait(0.02)
    assert runner.looks == looks
    assert not runner.interrupted


@pytest.fixture(autouse=True)
def going_on(front: Front) -> Iterator[None]:
    """Cores in threads are let go on before their front half closes them."""
    HeldRunner.go.clear()
    yield
    HeldRunner.go.set()


def held_in_thread(*given: Any) -> CoreLink:
    """A launcher of a core that is held inside a step, in a thread."""
    return launch_thread(*given, make=HeldRunner)


held_launchers = pytest.mark.parametrize(
    "launcher", [in_process("held", grace=0.1), held_in_thread], ids=["process", "thread"]
)


def answers(front: Front) -> list[Pong]:
    """All so far."""
    return [message for message in front.messages if isinstance(message, Pong)]


async def pongs(front: Front, link: CoreLink, count: int) -> list[Pong]:
    """The answers to further pings, sent one after the other."""
    for _ in range(count):
        known = len(answers(front))
        link.send(Ping(known + 1))
        await front.until(lambda known=known: len(answers(front)) > known)
    return answers(front)[-count:]


async def inside(front: Front, launcher: CoreLauncher, token_id: int) -> CoreLink:
    """A core inside the step that computes an id."""
    link = front.launch(launcher)
    await front.ready()
    link.send(AddSequence(1, (token_id,), GREEDY, 2))
    async with ends("the core is in no step"):
        while (await pongs(front, link, 1))[-1].progress is None:
            pass
    return link


@held_launchers
async def test_a2_progress_inside_a_step_is_told(front: Front, launcher: CoreLauncher) -> None:
    link = await inside(front, launcher, LONG)
    async with ends("it gets on no further"):
        while len({pong.progress for pong in await pongs(front, link, 3)}) == 1:
            pass


@held_launchers
async def test_b1_a_core_that_is_stuck_answers_the_same(front: Front, launcher: CoreLauncher) -> None:
    link = await inside(front, launcher, STUCK)
    progress: set[int | None] = {None}  # It may have been told of before the step, after which answers say none.
    async with ends("it gets on"):
        while None in progress or len(progress) > 1:
            progress = {pong.progress for pong in await pongs(front, link, 3)}


async def test_a2_a_step_that_was_told_of_goes_on_to_its_end(front: Front) -> None:
    await inside(front, held_in_thread, LONG)
    HeldRunner.go.set()
    await front.until(lambda: len(front.tokens(1)) == 2)


async def test_b1_a_stuck_thread_says_that_it_cannot_be_killed(front: Front) -> None:
    link = await inside(front, held_in_thread, STUCK)
    assert "cannot be killed" in link.kill()
    HeldRunner.go.set()
    async with ends("the thread goes on"):
        await link.close()


async def test_b1_a_process_that_is_stuck_can_be_killed(front: Front) -> None:
    link = await inside(front, in_process("held", grace=0.1), STUCK)
    assert link.kill() == "was killed"
