"""The processes beside the service log as it does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from headrace_engine import child_logs
from headrace_engine.environment import LOGS_VARIABLE
from support.clocks.waiting import LIMIT

PROGRAMS = {
    "core": "headrace_engine.process",
    "rendering": "headrace_engine.engine.chat.process",
    "formats": "headrace_engine.engine.formats.process",
}
LOGGING = """
import logging, threading, warnings
from headrace_engine import child_logs
from headrace_engine.environment import LOGS_VARIABLE

child_logs.configure("core")
log = logging.getLogger("headrace_engine.core")
log.debug("debugged")
log.info("counted: %d", 3)
logging.getLogger("some.library").info("chatter")
warnings.warn("soon gone")
try:
    raise ValueError("canary")
except ValueError:
    log.exception("step_failed")
failing = threading.Thread(target=lambda: [][1])
failing.start()
failing.join()
"""


def announce(monkeypatch: pytest.MonkeyPatch, *, json_lines: bool = True, level: str = "info") -> None:
    monkeypatch.setenv(LOGS_VARIABLE, "")
    child_logs.announce(json_lines=json_lines, level=level, engine="e1")


def logged(*line: str, **options: object) -> str:
    done = subprocess.run(
        [sys.executable, *line], stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False, **options
    )
    return done.stderr


@pytest.mark.parametrize(("name", "program"), PROGRAMS.items())
def test_every_process_logs_lines_of_the_service(monkeypatch: pytest.MonkeyPatch, name: str, program: str) -> None:
    """Also what it did not expect: what it is sent here is no message that it knows."""
    announce(monkeypatch)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\3\0\0\0abc")
        text = logged("-m", program, str(theirs.fileno()), pass_fds=[theirs.fileno()])
    events = [json.loads(line) for line in text.splitlines()]
    assert events
    for event in events:
        assert (event["engine"], event["process"]) == ("e1", name)
        assert event["level"] in ("info", "error")
        assert event["timestamp"].endswith("Z")


@pytest.mark.parametrize(("level", "reported"), [("info", False), ("debug", True)])
def test_bc197_texts_of_exceptions_are_told_where_asked(
    monkeypatch: pytest.MonkeyPatch, level: str, reported: bool
) -> None:
    announce(monkeypatch, level=level)
    events = [json.loads(line) for line in logged("-c", LOGGING).splitlines()]
    names = [event["event"] for event in events]
    assert ("debugged" in names, "chatter" in names) == (reported, False)
    assert {"counted: 3", "step_failed", "process_failed"} < set(names)
    assert any("soon gone" in name for name in names)
    failed = next(event for event in events if event["event"] == "step_failed")
    assert ("canary" in failed["exception"]) == reported
    assert "ValueError" in failed["exception"]


def test_terminals_and_starters_without_a_format_read_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, json_lines=False)
    (line,) = [line for line in logged("-c", LOGGING).splitlines() if "counted: 3" in line]
    assert "[info    ] counted: 3 logger=headrace_engine.core engine=e1 process=core" in line
    monkeypatch.delenv(LOGS_VARIABLE)
    assert "[info    ] counted: 3 logger=headrace_engine.core" in logged("-c", LOGGING)
