"""Why no engine can take a request."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace_proto.v1 import model_pb2

from headrace_gateway.engines.engine import Engine
from headrace_gateway.forwarding import model_refusals
from headrace_gateway.forwarding.processors import no_processing, processing
from headrace_gateway.status import CallError


def no_engine_for(engines: Collection[Engine], model_name: str, processors: Sequence[str] = ()) -> CallError:
    """Return why no engine can take a request to the model.

    Retryable (NO_ENGINE, DRAINING, MODEL_STARTING) if no engine answers, if an engine ran the model with these logits
    processors when it last answered, or is about to run it; otherwise the model must be started or installed, or the
    request changed.
    """
    coming = [engine.view.state(model_name) for engine in engines if engine.view.coming(model_name)]
    taken = any(engine.view.takes(model_name) for engine in engines)
    if taken and not processing(engines, model_name, processors):
        # An engine that does not run it yet may have them.
        return (
            model_refusals.model_starting(model_name, coming[0])
            if coming
            else no_processing(engines, model_name, processors)
        )
    views = [engine.view.models.get(model_name) for engine in engines if engine.view.reachable]
    present = [view for view in views if view is not None]
    if not any(engine.view.reachable for engine in engines):
        return model_refusals.no_engine(model_name, "no engine answers")
    running = [engine.view for engine in engines if engine.view.runs(model_name)]
    if any(view.reachable and view.draining for view in running):
        return model_refusals.draining_engine(model_name)
    if running:
        return model_refusals.no_engine(model_name, "the engine that ran it does not answer")
    if coming:
        return model_refusals.model_starting(model_name, max(coming, key=_nearness))
    if present:
        nearest = max(present, key=lambda view: _nearness(view.state))
        return model_refusals.model_not_running(model_name, nearest.state, nearest.failure.message)
    if any(model_name in engine.view.models for engine in engines):
        return model_refusals.no_engine(model_name, "the engine that has it does not answer")
    if any(engine.view.may_have(model_name) for engine in engines if not engine.view.reachable):
        return model_refusals.no_engine(model_name, "an engine that may have it was not reached yet")
    return model_refusals.unknown_model(model_name, (name for engine in engines for name in engine.view.models))


_TOWARDS_RUNNING = (
    model_pb2.MODEL_STATE_RELEASED,
    model_pb2.MODEL_STATE_FAILED,
    model_pb2.MODEL_STATE_STOPPED,
    model_pb2.MODEL_STATE_STOPPING,
    model_pb2.MODEL_STATE_INSTALLING,
    model_pb2.MODEL_STATE_INITIAL,
    model_pb2.MODEL_STATE_STARTING,
    model_pb2.MODEL_STATE_RUNNING,
)


def _nearness(state: model_pb2.ModelState) -> int:
    return _TOWARDS_RUNNING.index(state) if state in _TOWARDS_RUNNING else -1
