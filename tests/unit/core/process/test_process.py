"""Cores in processes and threads: one interface, and nobody survives the other's death unnoticed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys

import pytest
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.ipc.commands import AddSequence, Ping
from headrace_engine.ipc.messages import CoreFailed, StepBegun
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.process import EarlyLauncher
from headrace_engine.process.parent import ProcessLink
from support.clocks.waiting import LIMIT
from support.core.front import CORE, Front, in_process, in_thread
from support.core.simulated import GREEDY, expected, make_plan

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
