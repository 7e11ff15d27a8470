"""Cores in processes and threads: one interface, and nobody survives the other's death unnoticed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from headrace_engine.commands import AddSequence, Ping
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.engine.models.core_link import CoreLauncher
from headrace_engine.messages import CoreFailed, Pong, StepBegun, StepOutput
from headrace_engine.process import EarlyLauncher, launch_process, launch_thread
from headrace_engine.process.parent import ProcessLink
from support.clocks.waiting import LIMIT
from support.core.front import CORE, Front, in_process, in_thread
from support.core.simulated import GREEDY, SimulatedRunner, expected, make_plan

_SERVICE = CORE.with_name("simulated_service.py")


launchers = pytest.mark.parametrize("launcher", [in_process(), in_thread], ids=["process", "thread"])


@launchers
async def test_a_core_generates_and_ends_when_asked(front: Front, launcher: CoreLauncher) -> None:
    link = front.launch(launcher)
    await front.ready()
    request = AddSequence(1, (1, 2, 3), GREEDY, 10)
    link.send(request)
    await front.until(lambda: len(front.tokens(1)) == 10)
    assert front.tokens(1) == expected(request)
    await link.close()
    assert front.lost == []


async def test_an_early_core_takes_the_first_plan_alone(front: Front) -> None:
    """What it cannot import beforehand is for the plan's maker to tell."""
    launcher = EarlyLauncher("none of ours", program=(sys.executable, str(CORE), "plain"))
    early = launcher.early
    link = front.launch(launcher)
    await front.ready()
    assert (link.pid, launcher.early) == (early, None)
    front.messages.clear()
    assert front.launch(launcher).pid != early
    await front.ready()
    assert front.lost == []


async def test_where_an_early_core_has_died_another_starts(front: Front) -> None:
    launcher = EarlyLauncher("cpu", program=(sys.executable, str(CORE), "plain"))
    assert launcher.early is not None
    os.kill(launcher.early, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, launcher.early, os.WEXITED | os.WNOWAIT)
    front.launch(launcher)
    await front.ready()
    assert front.lost == []


def test_an_early_core_that_gets_no_plan_ends_with_its_service() -> None:
    """It is told by the end of its socket, whatever it imports just then."""
    text = "from headrace_engine.process import EarlyLauncher; print(EarlyLauncher('cpu').early)"
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
    with contextlib.suppress(ProcessLookupError):
        wait_for_end(int(done.stdout))


def wait_for_end(pid: int) -> None:
    """Wait for the end of a process that is nobody's child here."""
    descriptor = os.pidfd_open(pid)
    try:
        assert select.select([descriptor], [], [], LIMIT)[0]
    finally:
        os.close(descriptor)


@launchers
async def test_messages_come_once_a_step_on_the_loops_thread(front: Front, launcher: CoreLauncher) -> None:
    link = front.launch(launcher, make_plan(max_batch=8))
    await front.ready()
    for key in range(8):
        link.send(AddSequence(key, (key, 1), GREEDY, 20))
    await front.until(lambda: all(len(front.tokens(key)) == 20 for key in range(8)))
    outputs = [message for message in front.messages if isinstance(message, StepOutput) and message.batch_size]
    assert all(len(output.keys) == output.batch_size for output in outputs)
    assert max(output.batch_size for output in outputs) > 1


@launchers
async def test_large_messages_arrive(front: Front, launcher: CoreLauncher) -> None:
    """A prompt of several times what a socket holds, to the core; sequences by the hundred, back."""
    length = 80_000
    plan = make_plan(max_length=length, num_blocks=length // 1024 + 1, block_size=1024, max_prefill_tokens=length)
    link = front.launch(launcher, plan)
    await front.ready()
    request = AddSequence(1, tuple(range(70_000, 70_000 + length - 1)), GREEDY, 1)
    link.send(request)
    await front.until(lambda: front.tokens(1))
    assert front.tokens(1) == expected(request)


@launchers
async def test_closing_a_busy_core_does_not_wait_for_its_sequences(front: Front, launcher: CoreLauncher) -> None:
    link = front.launch(launcher, make_plan(max_length=4000, num_blocks=1000))
    await front.ready()
    link.send(AddSequence(1, (1, 2, 3), GREEDY, 3000))
    await front.until(lambda: front.tokens(1))
    await link.close()
    await link.close()
    assert len(front.tokens(1)) < 3000
    assert front.lost == []
    link.send(Ping(1))


@launchers
async def test_a_plan_that_cannot_start_is_reported_then_core_lost(front: Front, launcher: CoreLauncher) -> None:
    front.launch(launcher, make_plan(num_blocks=3))
    await front.until(lambda: front.lost)
    failed = front.messages[-1]
    assert isinstance(failed, CoreFailed)
    assert (failed.reason, failed.field) == ("INVALID_FIELD", "num_blocks")
    await front.links[0].close()
    assert len(front.lost) == 1


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


async def test_a_crash_on_the_device_is_noticed_after_its_last_tokens(front: Front) -> None:
    link = front.launch(in_process("crash"))
    await front.ready()
    link.send(AddSequence(1, (1, 2, 3), GREEDY, 5))
    await front.until(lambda: len(front.tokens(1)) == 5)
    link.send(AddSequence(2, (666,), GREEDY, 5))
    await front.until(lambda: front.lost)
    assert front.lost == ["the core closed its connection and was killed by SIGSEGV"]
    assert front.messages[-1] == StepBegun([2])


async def test_a_core_that_can_compute_nothing_says_so_and_ends(front: Front) -> None:
    link = front.launch(in_process("fail"))
    await front.ready()
    link.send(AddSequence(1, (666,), GREEDY, 5))
    await front.until(lambda: front.lost)
    failed = front.messages[-1]
    assert isinstance(failed, CoreFailed)
    assert failed.reason == "ENGINE_FAULT"
    assert "simulated fault" in failed.message
    assert front.lost == ["the core closed its connection and exited with status 1"]


async def test_a_core_that_sends_nonsense_is_lost(front: Front) -> None:
    """It does not end by itself, so it is killed."""
    front.launch(in_process("chatter", grace=0.1))
    await front.until(lambda: front.lost)
    assert front.lost == ["the core sent an invalid message (unknown message type 0x6e) and was killed by SIGKILL"]


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


async def test_each_launch_is_another_core(front: Front) -> None:
    first = front.launch(in_process())
    await front.ready()
    await first.close()
    front.messages.clear()
    second = front.launch(in_process())
    await front.ready()
    assert isinstance(first, ProcessLink)
    assert isinstance(second, ProcessLink)
    assert first.pid != second.pid
