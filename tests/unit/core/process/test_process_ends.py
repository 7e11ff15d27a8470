"""Cores that are killed, hang or are orphaned, and processes that cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.ipc.commands import AddSequence, Ping
from headrace_engine.ipc.messages import CoreFailed, Pong, StepBegun
from headrace_engine.process import launch_process, launch_thread
from headrace_engine.process.parent import ProcessLink
from support.clocks.waiting import LIMIT
from support.core.front import CORE, Front, in_process, in_thread
from support.core.simulated import GREEDY, SimulatedRunner, make_plan

_SERVICE = CORE.with_name("simulated_service.py")


async def test_a_killed_core_is_noticed_once(front: Front) -> None:
    link = front.launch(in_process())
    await front.ready()
    assert isinstance(link, ProcessLink)
    os.kill(link.pid, signal.SIGKILL)
    await front.until(lambda: front.lost)
    assert front.lost == ["the core closed its connection and was killed by SIGKILL"]
    link.send(Ping(1))
    await link.close()
    assert len(front.lost) == 1


async def test_a_core_that_hangs_is_killed_when_it_is_closed(front: Front) -> None:
    link = front.launch(in_process("held", grace=0.1))
    await front.ready()
    link.send(AddSequence(1, (666,), GREEDY, 5))
    await link.close()
    assert front.lost == []


async def test_a_core_that_hangs_can_be_killed_and_is_lost(front: Front) -> None:
    link = front.launch(in_process("held"))
    await front.ready()
    link.send(AddSequence(1, (666,), GREEDY, 5))
    await front.until(lambda: front.messages[-1] == StepBegun([1]))
    link.kill()
    await front.until(lambda: front.lost)
    assert front.lost == ["the core closed its connection and was killed by SIGKILL"]
    link.kill()


async def test_a_killed_thread_ends_with_its_step_and_is_heard_no_more(front: Front) -> None:
    """A thread cannot be killed: it finds out when its step is over."""
    go = threading.Event()

    class Held(SimulatedRunner):
        def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
            assert 666 not in steps[0].token_ids or go.wait(LIMIT)
            return super().run(steps)

    link = front.launch(lambda plan, receive, lost: launch_thread(plan, receive, lost, make=Held))
    await front.ready()
    link.send(AddSequence(1, (666,), GREEDY, 5))
    await front.until(lambda: front.messages[-1] == StepBegun([1]))
    link.kill()
    assert front.lost == []
    go.set()
    await front.until(lambda: front.lost)
    assert front.lost == ["the core ended"]
    assert front.messages[-1] == StepBegun([1])


async def test_a_thread_that_code_of_others_ends_is_lost(front: Front) -> None:
    class Leaving(SimulatedRunner):
        def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
            if 666 in steps[0].token_ids:
                raise SystemExit("enough")
            return super().run(steps)

    link = front.launch(lambda plan, receive, lost: launch_thread(plan, receive, lost, make=Leaving))
    await front.ready()
    link.send(AddSequence(1, (666,), GREEDY, 5))
    await front.until(lambda: front.lost)
    assert front.lost == ["the core failed: SystemExit: enough"]


async def test_a_killed_thread_at_rest_ends_at_once(front: Front) -> None:
    link = front.launch(in_thread)
    await front.ready()
    link.kill()
    await front.until(lambda: front.lost)
    assert front.lost == ["the core ended"]


async def test_sending_to_a_core_that_does_not_read_never_blocks(front: Front) -> None:
    """It is stopped while megabytes are sent, and finds all of them when it goes on."""
    link = front.launch(in_process())
    await front.ready()
    assert isinstance(link, ProcessLink)
    os.kill(link.pid, signal.SIGSTOP)
    big = AddSequence(1, (1,) * 500_000, GREEDY, 1)
    for key in range(8):
        link.send(AddSequence(key, big.prompt, GREEDY, 1))
    link.send(Ping(9))
    assert not any(isinstance(message, Pong) for message in front.messages)
    os.kill(link.pid, signal.SIGCONT)
    await front.pong(9)


async def test_signals_to_the_service_do_not_reach_the_core(front: Front) -> None:
    link = front.launch(in_process())
    await front.ready()
    assert isinstance(link, ProcessLink)
    assert os.getpgid(link.pid) != os.getpgid(0)
    assert os.getsid(link.pid) != os.getsid(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(link.pid, number)
    link.send(Ping(1))
    await front.pong(1)
    assert front.lost == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("mode", ["plain", "held"])
async def test_an_orphaned_core_ends_by_itself(number: signal.Signals, mode: str) -> None:
    """Even one that hangs in a step. The end of the pipe that both hold comes when the last of them is gone."""
    service = await asyncio.create_subprocess_exec(
        sys.executable, str(_SERVICE), mode, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert service.stdout is not None
    assert service.stderr is not None
    async with asyncio.timeout(LIMIT):
        core = int(await service.stdout.readline())
        os.kill(core, 0)
        service.send_signal(number)
        assert await service.wait() == -number
        log = await service.stderr.read()
    assert (b"core_orphaned" in log) is (mode == "plain")
    assert b"Traceback" not in log


async def test_the_program_that_is_started_is_the_engines_own(front: Front) -> None:
    """Without a test's program, the child refuses a backend that does not exist."""
    front.launch(launch_process, make_plan(backend="abacus"))
    await front.until(lambda: front.lost)
    assert front.messages == [
        CoreFailed("INVALID_FIELD", 'backend is "abacus"; this build has: cpu, cuda, torch', "backend")
    ]


async def test_a_program_that_cannot_start_is_a_launch_error() -> None:
    with pytest.raises(FileNotFoundError):
        launch_process(make_plan(), print, print, program=("/nonexistent/python",))
