"""Logs: one event a line on stderr, JSON unless a person reads along on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from headrace_proto.server.grpc_log import GoneClients


def configure(style: str = "auto", stream: TextIO | None = None) -> None:
    """Sets up structlog, and has the libraries' stdlib logging (warnings and above) go the same way.

    Args:
        style: one of LOG_FORMATS; "auto" is "console" on a terminal, else "json".
        stream: where to; default stderr.
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
    """Libraries log exceptions with their text, which may quote a user: the type is kept."""
    failure = event.pop("exc_info", None)
    if isinstance(failure, tuple) and failure[0] is not None:
        event["error"] = failure[0].__name__
    return event
