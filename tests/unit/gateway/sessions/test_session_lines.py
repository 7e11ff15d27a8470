"""How often a gateway logs sessions."""

from __future__ import annotations

import pytest
import structlog
from headrace_gateway.sessions import client_session
from headrace_proto.pure.log_budget import BURST, PARTIES, LogBudget
from structlog.testing import LogCapture


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    captured = LogCapture()
    monkeypatch.setattr(client_session, "log", structlog.wrap_logger(None, processors=[captured]))
    monkeypatch.setattr(client_session, "_lines", LogBudget(lambda: 5.0))
    return captured


def test_f10_a_host_that_opens_many_sessions_fills_no_log(lines: LogCapture) -> None:
    """The end of a session is logged if its beginning was."""
    share = BURST // PARTIES
    ends = [client_session._log_opened("python", f"ipv4:192.0.2.1:{port}") for port in range(3 * BURST)]
    for log_closed in ends:
        log_closed()
    opened, closed = (
        [each for each in lines.entries if each["event"] == f"session_{what}"] for what in ("opened", "closed")
    )
    assert [each["peer"] for each in opened] == [each["peer"] for each in closed]
    assert len(opened) == share
    client_session._log_opened("python", "ipv4:192.0.2.2:1")
    assert lines.entries[-1]["omitted"] == 3 * BURST - share
