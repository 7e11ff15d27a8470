"""Refusals of calls by the state of their model on all engines."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from headrace_proto.v1 import model_pb2
from headrace_proto.wire.status import state_name

from headrace_gateway.status import CallError, refusal, shorten, unavailable

_FEW = 8
"""Maximum number of names that a message lists."""


def unknown_model(model_name: str, known: Iterable[str] = ()) -> CallError:
    """Build UNKNOWN_MODEL: no engine has a model of this name.

    Args:
        known: names of the models that engines have; the message lists a few.
    """
    names = sorted(set(known))
    some = ", ".join(shorten(name) for name in names[:_FEW]) + (f" and {len(names) - _FEW} more" * (len(names) > _FEW))
    installed = f" (there are: {some})" if names else ""
    message = f'no model "{shorten(model_name)}" on any engine{installed}: install it first (InstallModel)'
    return refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL", message, model_name=model_name)


_WAYS = {
    model_pb2.MODEL_STATE_INSTALLING: "wait until it is INITIAL (WatchModel), then start it (StartModel)",
    model_pb2.MODEL_STATE_STOPPING: (
        "it takes no more requests. Wait until it is STOPPED (WatchModel), then start it (StartModel)"
    ),
}
"""Advice by state, if it is not simply to start the model."""

_REPLACE = "Install it again, with another config where that helps (InstallModel)"


def model_not_running(model_name: str, state: model_pb2.ModelState, failure: str = "") -> CallError:
    """Build MODEL_NOT_RUNNING: engines have the model, but it runs on none of them.

    Args:
        failure: why it failed, if the state is FAILED.
    """
    way = _WAYS.get(state, "start it first (StartModel)")
    if state == model_pb2.MODEL_STATE_FAILED:
        way = f"{failure.removesuffix('.') or 'it failed'}. {_REPLACE}, then start it (StartModel)"
    message = f'model "{shorten(model_name)}" is {state_name(state)}: {way}'
    detail = model_pb2.ModelStateInfo(model_name=model_name, state=state)
    code = grpc.StatusCode.FAILED_PRECONDITION
    return refusal(code, "MODEL_NOT_RUNNING", message, detail, model_name=model_name)


def model_starting(model_name: str, state: model_pb2.ModelState) -> CallError:
    """Build MODEL_STARTING: an engine is about to run the model."""
    way = "it takes requests once it is RUNNING. Try again, or watch it (WatchModel)"
    message = f'model "{shorten(model_name)}" is {state_name(state)}: {way}'
    return unavailable("MODEL_STARTING", message, model_name=model_name)


def no_engine(model_name: str, why: str) -> CallError:
    """Build NO_ENGINE: no engine can take the request now, but one may later."""
    message = f'no engine runs model "{shorten(model_name)}" now: {why}'
    return unavailable("NO_ENGINE", message, model_name=model_name)


def draining_engine(model_name: str) -> CallError:
    """Build DRAINING: the engine that runs the model is shutting down, as it says itself where it is asked."""
    message = f'the engine that runs model "{shorten(model_name)}" is shutting down, and no other runs it: try again'
    return unavailable("DRAINING", message, model_name=model_name)
