"""Converts the exception that ends a core into the message that reports it."""

from __future__ import annotations

from headrace_engine.core.steps.executor import StepFailed
from headrace_engine.errors import HeadraceError, in_words, sendable
from headrace_engine.ipc.messages import CoreFailed

_REASONS = frozenset({"BAD_MODEL", "BAD_PROCESSOR", "OUT_OF_MEMORY", "INVALID_FIELD", "NOT_SUPPORTED"})


def failure(error: BaseException) -> CoreFailed:
    """Return the message for an exception: errors of the caller or the model by reason, all others as ENGINE_FAULT."""
    if isinstance(error, HeadraceError) and error.reason in _REASONS:
        field = error.violations[0].field if error.violations else ""
        return CoreFailed(error.reason, sendable(error.message), field)
    if isinstance(error, StepFailed):
        return CoreFailed("ENGINE_FAULT", sendable(f"a step failed as a whole: {error}"))
    return CoreFailed("ENGINE_FAULT", in_words(error))
