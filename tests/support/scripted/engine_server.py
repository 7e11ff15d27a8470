"""A small engine for tests of the gateway: a real grpc.aio server with known models and requests.

A test can replace the answers of a method (`script`); calls are recorded (`heard`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from headrace_proto.v1 import engine_service_pb2 as facts_wire
from headrace_proto.v1 import model_service_pb2 as model_wire
from headrace_proto.v1 import request_service_pb2 as wire

from support.scripted.engine_answers import FactAnswers, ModelAnswers, RequestAnswers
from support.scripted.engine_sessions import SessionAnswers
from support.servers.ports import free_port

Script = Callable[[Any, Any], Awaitable[Any]]


@dataclass
class Heard:
    """One call that arrived."""

    method: str
    request: Any
    metadata: dict[str, Any]
    remaining: float | None


class ScriptedEngine(FactAnswers, ModelAnswers, RequestAnswers, SessionAnswers):
    """An engine on a port of its own."""

    def __init__(self, **models: Any) -> None:
        super().__init__(**models)
        self.heard: list[Heard] = []
        self.cancelled: list[str] = []
        self.script: dict[str, Script] = {}
        self.port = free_port()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; after a stop, on the same port again."""
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)]
        )
        self._server.add_generic_rpc_handlers(tuple(_handlers(self)))
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Stop at once, and cut calls in progress."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def restart_as_new(self) -> None:
        """Become a new instance, without models or requests."""
        self.instance_id = secrets.token_hex(4)
        self.requests.clear()
        self.logs.clear()

    def asked(self, method: str) -> list[Heard]:
        return [heard for heard in self.heard if heard.method == method]

    def polls(self) -> int:
        return len(self.asked("GetServerInfo"))


_SERVICES = ((facts_wire, "EngineService"), (model_wire, "ModelService"), (wire, "RequestService"))


_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _handlers(engine: ScriptedEngine) -> Any:
    """Return a handler per service, built from the descriptors: every method records its call and runs its script."""
    for module, service in _SERVICES:
        methods = {}
        for method in module.DESCRIPTOR.services_by_name[service].methods:
            make = _MAKERS[method.client_streaming, method.server_streaming]
            request_class = GetMessageClass(method.input_type)
            methods[method.name] = make(
                _behaviour(engine, method.name), request_class.FromString, lambda answer: answer.SerializeToString()
            )
        yield grpc.method_handlers_generic_handler(f"headrace.v1.{service}", methods)


def _behaviour(engine: ScriptedEngine, method: str) -> Any:
    async def behave(request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata())
        engine.heard.append(Heard(method, request, metadata, context.time_remaining()))
        engine.note()
        try:
            script = engine.script.get(method) or getattr(engine, method)
            return await script(request, context)
        except asyncio.CancelledError:
            engine.cancelled.append(method)
            engine.note()
            raise

    return behave
