"""The last known state of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_proto.v1 import engine_service_pb2, model_pb2

_BEFORE_RUNNING = frozenset(
    {model_pb2.MODEL_STATE_INSTALLING, model_pb2.MODEL_STATE_INITIAL, model_pb2.MODEL_STATE_STARTING}
)


@dataclass(frozen=True)
class EngineView:
    """State of an engine as of its last poll.

    Attributes:
        reachable: it answered. If not, the rest is from the last poll that it answered.
        problem: why it is unreachable, for the log.
        info: its server info; None before it was first reached.
        models: its models by name.
    """

    reachable: bool = False
    problem: str = "not polled yet"
    info: engine_service_pb2.GetServerInfoResponse | None = None
    models: Mapping[str, model_pb2.ModelInfo] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """True if nothing listens at its address, as last polled."""
        return "Connection refused" in self.problem

    @property
    def instance_id(self) -> str:
        """Random id of its current run; "" before it was first reached."""
        return self.info.instance_id if self.info is not None else ""

    @property
    def draining(self) -> bool:
        """True if it refuses new requests and is shutting down."""
        return self.info is not None and self.info.draining

    @property
    def tells_cache(self) -> bool:
        """True if it sends cache events."""
        return self.info is not None and "cache_events" in self.info.features

    def state(self, model_name: str) -> model_pb2.ModelState:
        """Return the state of a model there; UNSPECIFIED if it has no model of that name."""
        info = self.models.get(model_name)
        return model_pb2.MODEL_STATE_UNSPECIFIED if info is None else info.state

    def runs(self, model_name: str) -> bool:
        """True if the model is RUNNING, as last polled."""
        return self.state(model_name) == model_pb2.MODEL_STATE_RUNNING

    def serves(self, model_name: str) -> bool:
        """True if the model is RUNNING and its core is not being replaced, as last polled."""
        info = self.models.get(model_name)
        return info is not None and serving(info)

    def coming(self, model_name: str) -> bool:
        """True if the model is being brought to RUNNING there, as last polled."""
        info = self.models.get(model_name)
        wanted = info is not None and info.wanted_state == model_pb2.MODEL_STATE_RUNNING
        return wanted and self.state(model_name) in _BEFORE_RUNNING

    def may_have(self, model_name: str) -> bool:
        """True unless the engine is known not to have the model."""
        return self.reachable or self.info is None or model_name in self.models

    def takes(self, model_name: str) -> bool:
        """True if a request to the model can be placed there now."""
        return self.reachable and not self.draining and self.runs(model_name)


def serving(model: model_pb2.ModelInfo) -> bool:
    """True if the model is RUNNING and reports no progress (which would be that of a replacement core)."""
    return model.state == model_pb2.MODEL_STATE_RUNNING and not model.HasField("progress")
