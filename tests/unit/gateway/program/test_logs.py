"""Logs: JSON in services, readable on a terminal, and never the text of an exception."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog
from headrace_gateway import logs


def logged(stream, name):
    """The one event of that name. What other tests left to the garbage collector may have its say in between."""
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    (event,) = [event for event in events if event["event"] == name]
    return event


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def configure():
    """Sets logging up for one test, and as it was afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def use(stream, style="auto"):
        logs.configure(style, stream)
        return stream

    yield use
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


def test_without_a_terminal_an_event_is_a_line_of_json(configure):
    stream = configure(io.StringIO())
    structlog.get_logger().info("listening", port=7070)
    event = logged(stream, "listening")
    assert (event["port"], event["level"]) == (7070, "info")
    assert event["timestamp"].endswith("Z")


def test_on_a_terminal_an_event_is_readable(configure):
    stream = configure(Terminal())
    structlog.get_logger().info("listening", port=7070)
    assert "listening" in stream.getvalue()
    with pytest.raises(ValueError):
        json.loads(stream.getvalue())


def test_the_format_can_be_chosen(configure):
    stream = configure(Terminal(), "json")
    structlog.get_logger().info("listening")
    assert logged(stream, "listening")["level"] == "info"
    stream = configure(io.StringIO(), "console")
    structlog.get_logger().info("listening")
    assert not stream.getvalue().startswith("{")


def test_bc197_a_librarys_exception_is_logged_by_its_type(configure):
    stream = configure(io.StringIO())
    try:
        raise RuntimeError("canary-7f3a")
    except RuntimeError:
        logging.getLogger("grpc").exception("Unexpected [%s]", "RuntimeError")
    assert logged(stream, "Unexpected [RuntimeError]")["error"] == "RuntimeError"
    assert "canary-7f3a" not in stream.getvalue()


def test_a_client_that_has_just_gone_is_no_error(configure):
    """The library logs it as one, with the exception of the write that met it."""
    stream = configure(io.StringIO())
    grpc_log = logging.getLogger("grpc._cython.cygrpc")
    try:
        raise RuntimeError("the batch failed")
    except RuntimeError:
        grpc_log.exception("%s raised in core by servicer method [%s]", "ExecuteBatchError", "/a.Service/Session")
    grpc_log.error("Unexpected")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["level"] for event in events] == ["info", "error"]
