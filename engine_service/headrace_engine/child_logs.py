"""Logging in child processes of the service: in its format, at its level, with the engine's name.

Uses the standard library alone, not structlog, so that it does not delay the start of a core.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType

from headrace_proto.pure.faults import trace

from headrace_engine.environment import announce_logs, announced_logs

PACKAGE = "headrace_engine"
"""The root logger of this package."""


def announce(*, json_lines: bool, level: str, engine: str) -> None:
    """Make processes that are started from now on log as this one does."""
    announce_logs({"json": json_lines, "level": level, "engine": engine})


def configure(process: str) -> None:
    """Log to stderr as the service announced; readable lines if it did not.

    Args:
        process: the kind of this process, attached to every event.
    """
    settings = announced_logs()
    handler = logging.StreamHandler(sys.stderr)
    about = {"engine": settings.get("engine", ""), "process": process, "pid": os.getpid()}
    texts = settings.get("level") == "debug"
    handler.setFormatter(_JsonLines(about, texts) if settings.get("json") else _ReadableLines(about, texts))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(PACKAGE).setLevel(settings.get("level", "info").upper())
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_exception
    threading.excepthook = _log_thread


class _Lines(logging.Formatter):
    """Formats an event as one line.

    Args:
        about: fields of every event.
        texts: include the texts of exceptions, which may quote requests.
    """

    def __init__(self, about: dict[str, object], texts: bool) -> None:
        super().__init__()
        self._about, self._texts = about, texts

    def _facts(self, record: logging.LogRecord) -> dict[str, object]:
        facts: dict[str, object] = {"logger": record.name, **self._about}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            facts["exception"] = self.formatException(record.exc_info) if self._texts else trace(error)
        return facts


class _JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        event = {"event": record.getMessage(), **self._facts(record), "level": record.levelname.lower()}
        return json.dumps({**event, "timestamp": _time(record)})


class _ReadableLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        facts = self._facts(record)
        exception = facts.pop("exception", None)
        fields = " ".join(f"{name}={value}" for name, value in facts.items())
        line = f"{_time(record)} [{record.levelname.lower():<8}] {record.getMessage()} {fields}"
        return line if exception is None else f"{line}\n{exception}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")


def _log_exception(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    logging.getLogger(PACKAGE).error("process_failed", exc_info=(kind, error, where))


def _log_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        _log_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
