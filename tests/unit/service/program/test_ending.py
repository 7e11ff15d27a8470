"""The end of the program comes in time, whatever hangs."""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.clocks.waiting import LIMIT
from unit.service.program.test_main import run  # noqa: F401  # the fixture

HANGING = "support.scripted.hanging_program"
LISTEN = ("--listen", "127.0.0.1:0")


def end_children(program, text):
    """End what the program started and did not end, as far as it told: in events that were read, and in a text."""
    reported = [str(event["child"]) for event in program.events if "child" in event]
    for child in {*reported, *re.findall(r'"child": (\d+)', text)}:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("what", ["thread", "loop", "closing", "interpreter"])
def test_f1_sigterm_ends_the_program_whatever_hangs(run, what):  # noqa: F811
    """A thread, the event loop, the engine's close, and native code that holds the interpreter's lock."""
    program = run(HANGING, *LISTEN, "--drain-limit", "0", "--model", f"{what}=/m")
    program.event("hanging")
    program.process.send_signal(signal.SIGTERM)
    text = program.process.stderr.read()
    assert program.process.wait(LIMIT) == 1
    if what == "interpreter":  # Nobody was left to end its children.
        end_children(program, text)
    if what != "interpreter":
        assert "not_ended_in_time" in text
        assert "MainThread" in text


@pytest.mark.parametrize("what", ["loop", "closing"])
def test_f1_a_second_signal_ends_the_program_at_once(run, what):  # noqa: F811
    """Not after an hour."""
    program = run(HANGING, *LISTEN, "--drain-limit", "3600", "--model", f"{what}=/m")
    program.event("hanging")
    program.process.send_signal(signal.SIGTERM)
    program.process.send_signal(signal.SIGINT)
    assert program.process.wait(LIMIT) == 1
    assert "not_ended_in_time" in program.process.stderr.read()


@pytest.mark.parametrize("what", ["waiting", "checking"])
def test_f1_sigterm_cuts_what_only_waits(run, what):  # noqa: F811
    """An install, and the look at what the command line names, before the program serves."""
    program = run(HANGING, *LISTEN, "--drain-limit", "3600", "--model", f"{what}=/m")
    program.event("hanging")
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 0
    end_children(program, "")
    assert program.names()[-1] == "stopped"
