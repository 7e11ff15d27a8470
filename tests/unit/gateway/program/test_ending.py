"""The end of the gateway comes in time, whatever hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import headrace_gateway
import pytest
from support.clocks.waiting import LIMIT

TESTS = Path(__file__).parents[3]


@pytest.mark.parametrize(("limit", "signals"), [("0", [signal.SIGTERM]), ("3600", [signal.SIGTERM, signal.SIGINT])])
def test_f1_signals_end_the_gateway_whatever_hangs(limit: str, signals: list[signal.Signals]) -> None:
    """The first within the limit, the second at once."""
    path = os.pathsep.join(map(str, [Path(headrace_gateway.__file__).parents[2], TESTS]))
    line = [
        sys.executable,
        "-m",
        "support.scripted.hanging_gateway",
        "--engine",
        "e1=127.0.0.1:1",
        "--drain-limit",
        limit,
    ]
    with subprocess.Popen(
        [*line, "--listen", "127.0.0.1:0", "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stderr is not None
        try:
            for text in process.stderr:
                if json.loads(text)["event"] == "listening":
                    break
            for number in signals:
                process.send_signal(number)
            events = [json.loads(text) for text in process.stderr]
            assert process.wait(LIMIT) == 1
        finally:
            process.kill()
    assert "MainThread" in next(event for event in events if event["event"] == "not_ended_in_time")["threads"]
