"""The command line run in this process, against the scripted server."""

from __future__ import annotations

from typing import Any

from headrace.cli import main as cli
from headrace_proto.v1 import model_pb2, model_service_pb2, request_service_pb2
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, end_record, ended, tokens

RELEASED = request_service_pb2.ReleaseRequestResponse()


def run(server: ScriptedServer, *arguments: str) -> int:
    """One command; its exit status."""
    command, *rest = arguments
    return cli.main([command, "--address", server.address, *rest])


def script_answer(server: ScriptedServer, *texts: str, reason: int | None = None, **request: Any) -> None:
    """A request that answers these texts, a token each; it ends for this reason, or with EOS."""
    ids = list(range(len(texts)))
    server.expect("StartRequest", accepted(**request))
    steps = [tokens(ids, place, place + 1, text=text) for place, text in enumerate(texts)]
    record = end_record(ids, finish_reason=reason) if reason is not None else end_record(ids)
    server.expect("GeneratedElements", [*steps, ended(ids, record=record)])
    server.expect("ReleaseRequest", RELEASED)


def info(state: int, **fields: Any) -> model_pb2.ModelInfo:
    """A model on an engine."""
    return model_pb2.ModelInfo(**{"model_name": "smol", "engine": "e1", "state": state, **fields})


def script_running(server: ScriptedServer) -> None:
    """A model that takes requests."""
    models = [info(model_pb2.MODEL_STATE_RUNNING)]
    server.expect("GetModel", model_service_pb2.GetModelResponse(engines=models))
