"""Logs: one event a line, whoever logs, and no text of a request in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from headrace_proto.pure.faults import trace
from headrace_proto.server.arguments import log_json
from headrace_proto.server.logs import configure_library, configure_service, logger


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("headrace_engine")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    structlog.reset_defaults()  # Whoever captured events before leaves structlog configured.
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def fail(text: str) -> None:
    raise ValueError(text)


def test_an_event_is_one_line_of_json_with_the_engines_name(capsys):
    configure_service("headrace_engine", json=True, level="info", engine="e1")
    logger("headrace_engine.service.x").bind(model="smol").info("model_state", state="RUNNING")
    (event,) = lines(capsys)
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "model_state", "level": "info", "engine": "e1", "model": "smol", "state": "RUNNING"}


def test_what_other_modules_log_is_the_same_kind_of_line(capsys):
    configure_service("headrace_engine", json=True, level="info", engine="e1")
    logging.getLogger("headrace_engine.engine").warning("state_not_saved: %s", "disk full")
    logging.getLogger("some.library").info("chatter")
    (event,) = lines(capsys)
    assert (event["event"], event["level"], event["engine"]) == ("state_not_saved: disk full", "warning", "e1")


@pytest.mark.parametrize(("level", "reported"), [("info", False), ("debug", True)])
def test_bc197_an_exception_is_logged_without_its_text(capsys, level, reported):
    configure_service("headrace_engine", json=True, level=level, engine="e1")
    word = "canary"
    try:
        fail(word)
    except ValueError:
        logging.getLogger("headrace_engine.core").exception("core_failed")
    (event,) = lines(capsys)
    assert "in fail" in event["exception"]
    assert "ValueError" in event["exception"]
    assert (word in event["exception"]) is reported


def test_debug_events_are_left_out_at_the_default_level(capsys):
    configure_service("headrace_engine", json=True, level="info", engine="e1")
    logger("headrace_engine.service.x").debug("refusal_text", text="canary")
    assert lines(capsys) == []


def test_a_console_line_is_readable(capsys):
    configure_service("headrace_engine", json=False, level="info", engine="e1")
    logger("headrace_engine.service.x").info("model_state", state="RUNNING")
    (line,) = capsys.readouterr().err.splitlines()
    assert "model_state" in line
    with pytest.raises(ValueError):
        json.loads(line)


def test_in_process_events_go_to_the_standard_logging(caplog, capsys):
    configure_library()
    with caplog.at_level("INFO", "headrace_engine"):
        logger("headrace_engine.service.x").info("request_refused", reason="INVALID_FIELD")
    (record,) = [record for record in caplog.records if record.name.startswith("headrace_engine.")]
    assert record.name == "headrace_engine.service.x"
    assert "event='request_refused' reason='INVALID_FIELD'" in record.getMessage()
    assert capsys.readouterr().out == ""


def test_a_program_that_configured_structlog_keeps_its_settings():
    structlog.configure(processors=[])
    configure_library()
    assert structlog.get_config()["processors"] == []


def test_a_trace_tells_causes_first():
    try:
        try:
            fail("first")
        except ValueError as error:
            raise KeyError("second") from error
    except KeyError as error:
        found = trace(error)
    assert found.index("ValueError\nwhich led to\n") < found.index("KeyError\n")


def test_a_client_that_has_just_gone_is_no_error(capsys):
    """The library logs it as one, with the exception of the write that met it."""
    configure_service("headrace_gateway", json=True, level="info")
    grpc_log = logging.getLogger("grpc._cython.cygrpc")
    try:
        fail("the batch failed")
    except ValueError:
        grpc_log.exception("%s raised in core by servicer method [%s]", "ExecuteBatchError", "/a.Service/Session")
    grpc_log.error("Unexpected")
    events = lines(capsys)
    assert [event["level"] for event in events] == ["info", "error"]
    assert not any("exception" in event for event in events)


@pytest.mark.parametrize(("terminal", "expected"), [(True, False), (False, True)])
def test_without_a_choice_the_format_is_that_of_stderr(monkeypatch, terminal, expected):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    assert log_json("auto") is expected
    assert log_json("json")
    assert not log_json("console")
