"""Logs: one event per line, JSON or readable text. Events carry no prompts and no output."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog
from structlog.types import EventDict, Processor

from headrace_proto.pure.faults import trace
from headrace_proto.server.grpc_log import GoneClients

_COMMON: Sequence[Processor] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def logger(name: str) -> Any:
    """Return the logger of one of our modules."""
    return structlog.get_logger(name)


def configure_service(package: str, *, json: bool, level: str, **fields: str) -> None:
    """Log to stderr, other libraries' warnings included.

    Args:
        package: import name of the server, whose events `level` filters.
        level: minimum level of its events; "debug" also logs texts that may quote requests.
        fields: fields of every event.
    """
    renderer: Processor = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer()
    exceptions = structlog.processors.format_exc_info if level == "debug" else _without_texts
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_COMMON,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, exceptions, renderer],
        )
    )
    handler.addFilter(GoneClients())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(package).setLevel(level.upper())
    _configure(structlog.stdlib.ProcessorFormatter.wrap_for_formatter)
    structlog.contextvars.bind_contextvars(**fields)


def configure_library() -> None:
    """Hand events to the standard library's logging, unless the program has configured structlog itself."""
    if not structlog.is_configured():
        _configure(structlog.processors.KeyValueRenderer(key_order=["event"]))


def _without_texts(_: Any, __: str, event: EventDict) -> EventDict:
    """Replace the exception of an event of stdlib logging by its stack, without its text."""
    found = event.pop("exc_info", None)
    if found:
        event["exception"] = trace(found[1])
    return event


def _configure(last: Processor) -> None:
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_COMMON, last],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
