"""Errors for calls that a model's state does not allow, with advice for the caller."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_engine.errors import FailedPrecondition, HeadraceError, Unavailable, quoted
from headrace_engine.model_types import ModelState

BEFORE_RUNNING = (ModelState.INSTALLING, ModelState.INITIAL, ModelState.STARTING)
"""States on the way to RUNNING."""

COMPUTING = (ModelState.STARTING, ModelState.RUNNING)
"""States from which a model can only be stopped."""


def wrong_state(
    verb: str, name: str, state: ModelState, failure: HeadraceError | None, allowed: Sequence[ModelState]
) -> FailedPrecondition:
    """Return the error for a verb that the state does not allow."""
    text = f"{verb}: model {quoted(name)} is {state}{way_out(state, failure)}"
    if state is not ModelState.FAILED:  # There the way out is all there is to do.
        text += f". The call is possible from {', '.join(allowed)}"
    return FailedPrecondition(text, state=state, metadata={"model_name": name})


def given_up(name: str, state: ModelState) -> FailedPrecondition:
    """Return the error for a verb that another call cancelled."""
    text = f"model {quoted(name)} is {state}: another call ended this one"
    return FailedPrecondition(text, state=state, metadata={"model_name": name})


def why_not_running(state: ModelState, failure: HeadraceError | None) -> str:
    """Return text to follow "model is FAILED: " and the like: why it accepts no requests, and what to do."""
    if state is ModelState.FAILED:
        return f"{_text(failure)}. {_REPLACE}, then start it (StartModel)"
    if state is ModelState.STOPPING:
        return "it takes no more requests. Wait until it is STOPPED (WatchModel), then start it (StartModel)"
    if state is ModelState.INSTALLING:
        return "wait until it is INITIAL (WatchModel), then start it (StartModel)"
    return "start it first (StartModel)"


def starting(name: str, state: ModelState) -> Unavailable:
    """Return the error for a request to a model on its way to RUNNING: a retry will succeed."""
    text = f"model {quoted(name)} is {state}: it takes requests once it is RUNNING. Try again, or watch it (WatchModel)"
    return Unavailable(text, reason="MODEL_STARTING", retry_after=1.0, metadata={"model_name": name})


def core_restarting(name: str) -> Unavailable:
    """Return the error for a call to a model whose core was lost: a retry will succeed."""
    text = f"the core of model {quoted(name)} is being restarted"
    return Unavailable(text, reason="CORE_RESTARTING", retry_after=1.0, metadata={"model_name": name})


def way_out(state: ModelState, failure: HeadraceError | None) -> str:
    """Return text to follow "model is FAILED" and the like: what to do or wait for; "": nothing."""
    if state is ModelState.FAILED:
        return f": {_text(failure)}. {_REPLACE}"
    if state in COMPUTING:
        return ": stop it first (StopModel)"
    ends = {ModelState.INSTALLING: ModelState.INITIAL, ModelState.STOPPING: ModelState.STOPPED}
    return f": wait until it is {ends[state]} (WatchModel)" if state in ends else ""


_REPLACE = "Install it again, with another config where that helps (InstallModel)"


def _text(failure: HeadraceError | None) -> str:
    """Return why a model failed, without a full stop."""
    return "it failed" if failure is None else failure.message.removesuffix(".")
