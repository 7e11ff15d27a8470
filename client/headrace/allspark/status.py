"""Status codes of DashInfer, from the calls and errors of Headrace."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from headrace.errors import (
    AuthError,
    ConflictError,
    EngineLostError,
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    StateError,
    UnavailableError,
)

logger = logging.getLogger("headrace.allspark")


class AsStatus(int):
    """Outcome of a call: an integer that equals one of the codes below, with the error behind it.

    Attributes:
        name: name of the code.
        error: the error that ended the call; None for ALLSPARK_SUCCESS.
    """

    ALLSPARK_SUCCESS: ClassVar[AsStatus]
    """The call succeeded."""
    ALLSPARK_UNKNOWN_ERROR: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_PARAM_ERROR: ClassVar[AsStatus]
    """A field, prompt, template, model name or response format is invalid."""
    ALLSPARK_IO_ERROR: ClassVar[AsStatus]
    """The model's files cannot be used."""
    ALLSPARK_MEMORY_ERROR: ClassVar[AsStatus]
    """There is not enough memory for the model."""
    ALLSPARK_RUNTIME_ERROR: ClassVar[AsStatus]
    """The engine failed, was lost or cannot be reached, or the time ran out."""
    ALLSPARK_EXCEED_LIMIT_ERROR: ClassVar[AsStatus]
    """The prompt is too long, or too many requests are waiting."""
    ALLSPARK_INVALID_CALL_ERROR: ClassVar[AsStatus]
    """The state of the model does not allow the call, or its name is in use."""
    ALLSPARK_EMPTY_REQUEST: ClassVar[AsStatus]
    """There is no handle."""
    ALLSPARK_ILLEGAL_REQUEST_ID: ClassVar[AsStatus]
    """There is no such request."""
    ALLSPARK_CACHE_MEMORY_OUT: ClassVar[AsStatus]
    """Never returned: a request without memory waits, or ends with GenerateInterrupted."""
    ALLSPARK_REQUEST_DENIED: ClassVar[AsStatus]
    """The model does not run, the engine is shutting down, or the caller is not allowed."""
    ALLSPARK_CHUNK_PREFILL: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_LORA_NUM_EXCEED_LIMIT_ERROR: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_LORA_RANK_EXCEED_LIMIT_ERROR: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_LORA_NOT_FOUND: ClassVar[AsStatus]
    """There is no such adapter."""
    ALLSPARK_LORA_ALREADY_LOADED: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_LORA_IN_USE: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_DEPRECATED: ClassVar[AsStatus]
    """Never returned."""
    ALLSPARK_STREAMING: ClassVar[AsStatus]
    """Never returned."""

    error: HeadraceError | None

    def __new__(cls, code: int, error: HeadraceError | None = None) -> AsStatus:
        """Return the status of a code."""
        status = super().__new__(cls, code)
        status.error = error
        return status

    @property
    def name(self) -> str:
        """Name of the code."""
        return _NAMES[int(self)]

    @property
    def value(self) -> int:
        """Number of the code."""
        return int(self)

    def __repr__(self) -> str:
        return f"AsStatus.{self.name}" + (f" ({self.error})" if self.error is not None else "")

    __str__ = __repr__


_CODES = {
    "ALLSPARK_SUCCESS": 0, "ALLSPARK_UNKNOWN_ERROR": 1, "ALLSPARK_PARAM_ERROR": 2, "ALLSPARK_IO_ERROR": 3,
    "ALLSPARK_MEMORY_ERROR": 4, "ALLSPARK_RUNTIME_ERROR": 5, "ALLSPARK_EXCEED_LIMIT_ERROR": 7,
    "ALLSPARK_INVALID_CALL_ERROR": 8, "ALLSPARK_EMPTY_REQUEST": 9, "ALLSPARK_ILLEGAL_REQUEST_ID": 10,
    "ALLSPARK_CACHE_MEMORY_OUT": 11, "ALLSPARK_REQUEST_DENIED": 12, "ALLSPARK_CHUNK_PREFILL": 14,
    "ALLSPARK_DEPRECATED": 20, "ALLSPARK_LORA_NUM_EXCEED_LIMIT_ERROR": 21, "ALLSPARK_LORA_RANK_EXCEED_LIMIT_ERROR": 22,
    "ALLSPARK_LORA_NOT_FOUND": 23, "ALLSPARK_LORA_ALREADY_LOADED": 24, "ALLSPARK_LORA_IN_USE": 25,
    "ALLSPARK_STREAMING": 200,
}  # fmt: skip

_NAMES = {code: name for name, code in _CODES.items()}

for _name, _code in _CODES.items():
    setattr(AsStatus, _name, AsStatus(_code))

_BY_REASON = {
    "PROMPT_TOO_LONG": "ALLSPARK_EXCEED_LIMIT_ERROR",
    "UNKNOWN_REQUEST": "ALLSPARK_ILLEGAL_REQUEST_ID",
    "UNKNOWN_LORA": "ALLSPARK_LORA_NOT_FOUND",
    "LORA_EXISTS": "ALLSPARK_LORA_ALREADY_LOADED",
    "LORA_IN_USE": "ALLSPARK_LORA_IN_USE",
    "MODEL_NOT_RUNNING": "ALLSPARK_REQUEST_DENIED",
    "BAD_MODEL": "ALLSPARK_IO_ERROR",
    "OUT_OF_MEMORY": "ALLSPARK_MEMORY_ERROR",
    "DRAINING": "ALLSPARK_REQUEST_DENIED",
    "MODEL_STARTING": "ALLSPARK_REQUEST_DENIED",
    "CORE_RESTARTING": "ALLSPARK_REQUEST_DENIED",
}
"""Codes of reasons that differ from those of their exception."""

_BY_KIND = (
    (InvalidRequestError, "ALLSPARK_PARAM_ERROR"),
    (EngineLostError, "ALLSPARK_RUNTIME_ERROR"),
    (NotFoundError, "ALLSPARK_PARAM_ERROR"),
    (ConflictError, "ALLSPARK_INVALID_CALL_ERROR"),
    (StateError, "ALLSPARK_INVALID_CALL_ERROR"),
    (OverloadedError, "ALLSPARK_EXCEED_LIMIT_ERROR"),
    (AuthError, "ALLSPARK_REQUEST_DENIED"),
    (UnavailableError, "ALLSPARK_RUNTIME_ERROR"),
    (HeadraceError, "ALLSPARK_RUNTIME_ERROR"),
)
"""Codes of exceptions; the first that fits."""


def status_of(error: HeadraceError) -> AsStatus:
    """Return the status of an error."""
    name = _BY_REASON.get(error.reason) or next(name for kind, name in _BY_KIND if isinstance(error, kind))
    return AsStatus(_CODES[name], error)


def outcome(verb: str, call: Callable[[], Any]) -> AsStatus:
    """Call, and return the status; an error is logged."""
    try:
        call()
    except HeadraceError as error:
        return failed(verb, error)
    return AsStatus.ALLSPARK_SUCCESS


def request_outcome(verb: str, handle: str | None, call: Callable[[str], Any]) -> AsStatus:
    """Call with a handle, and return the status; an error, as that there is no handle, is logged."""
    if not handle:
        logger.error("%s: there is no handle", verb)
        return AsStatus.ALLSPARK_EMPTY_REQUEST
    return outcome(verb, lambda: call(handle))


def failed(verb: str, error: HeadraceError) -> AsStatus:
    """Log the error of a call, and return its status."""
    logger.error("%s: %s", verb, error)
    return status_of(error)
