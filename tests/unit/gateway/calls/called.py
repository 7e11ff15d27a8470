"""Calls of every kind through a gateway."""

from __future__ import annotations

from headrace_proto.v1 import engine_service_pb2 as facts_wire
from headrace_proto.v1 import model_service_pb2 as model_wire
from headrace_proto.v1 import request_service_pb2 as wire

ID = "0123456789abcdef0123456789abcdef"
HANDLE = f"e1/x/{ID}"


def calls(front):
    """One call of each kind that a handle, a placement or a fan-out makes."""
    return {
        "StartRequest": lambda **more: front.requests.StartRequest(wire.StartRequestRequest(model_name="smol"), **more),
        "StopRequest": lambda **more: front.requests.StopRequest(wire.StopRequestRequest(handle=HANDLE), **more),
        "Generate": lambda **more: front.requests.Generate(wire.GenerateRequest(model_name="smol"), **more),
        "GeneratedElements": lambda **more: front.requests.GeneratedElements(
            wire.GeneratedElementsRequest(handle=HANDLE), **more
        ),
        "GetModel": lambda **more: front.models.GetModel(model_wire.GetModelRequest(model_name="smol"), **more),
        "WatchModel": lambda **more: front.models.WatchModel(model_wire.WatchModelRequest(), **more),
        "Tokenize": lambda **more: front.facts.Tokenize(facts_wire.TokenizeRequest(model_name="smol"), **more),
    }
