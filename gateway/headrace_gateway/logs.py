"""Logs: one event per line on stderr, as JSON unless stderr is a terminal."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from headrace_proto.server.grpc_log import GoneClients


def configure(style: str = "auto", stream: TextIO | None = None) -> None:
    """Configure structlog, and send warnings of other libraries (stdlib logging) through it.

    Args:
        style: one of LOG_FORMATS; "auto" is "console" on a terminal, else "json".
        stream: destination; default stderr.
    """
    out = stream or sys.stderr
    readable = style == "console" or (style == "auto" and out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, last],
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[_without_text, structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
    )
    handler.setFormatter(formatter)
    handler.addFilter(GoneClients())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _without_text(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace an exception by its type: its text may quote what a user sent."""
    failure = event.pop("exc_info", None)
    if isinstance(failure, tuple) and failure[0] is not None:
        event["error"] = failure[0].__name__
    return event
