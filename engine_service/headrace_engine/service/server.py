"""The gRPC server of one engine."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2_grpc
from headrace_proto.server.interceptor import WATCHES
from headrace_proto.server.listening import bind, parse_address
from headrace_proto.server.options import SERVER_OPTIONS
from headrace_proto.server.reflection import enable
from headrace_proto.server.tls import Certificates
from headrace_proto.v1 import engine_service_pb2_grpc, model_service_pb2_grpc, request_service_pb2_grpc

from headrace_engine.engine.engine import Engine
from headrace_engine.service.endless import ENDLESS, EndlessCalls
from headrace_engine.service.engine_servicer import EngineServicer
from headrace_engine.service.health import Health
from headrace_engine.service.interceptor import FailureInterceptor
from headrace_engine.service.model_servicer import ModelServicer
from headrace_engine.service.request_servicer import RequestServicer
from headrace_engine.service.trust import Trust

_OPTIONS = (*SERVER_OPTIONS, ("grpc.max_concurrent_streams", 4096))


class EngineServer:
    """Serves one engine: its three services, health, and reflection. To be created and used in one running event loop.

    Args:
        engine: answers the calls; started and closed by the caller, not by the server.
        reflection: serve reflection, for tools such as grpcurl.
        certificates: for TLS; None: no encryption.
        secrets: one of which every call must bring; none: anyone may call.
        vllm_model: model to serve by vLLM's service too; "": none.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        reflection: bool = True,
        certificates: Certificates | None = None,
        secrets: Sequence[str] = (),
        vllm_model: str = "",
    ) -> None:
        self._endless = EndlessCalls()
        self._certificates = certificates
        mutual_tls = certificates is not None and certificates.client_authorities is not None
        interceptor = FailureInterceptor(self._endless, Trust(secrets, mutual_tls=mutual_tls))
        self._server = grpc.aio.server(interceptors=[interceptor], options=_OPTIONS)
        self._health = Health(engine)
        engine_service_pb2_grpc.add_EngineServiceServicer_to_server(EngineServicer(engine), self._server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(engine), self._server)
        request_service_pb2_grpc.add_RequestServiceServicer_to_server(RequestServicer(engine), self._server)
        if vllm_model:
            _add_vllm(engine, vllm_model, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        if reflection:
            enable(self._server)

    def listen(self, address: str) -> str:
        """Bind an address HOST:PORT. Return it with the real port. Calls are served from `start` on.

        Raises:
            ListenError: the address is malformed or in use.
            CertificateError: a file of its certificate cannot be used.
        """
        credentials = None if self._certificates is None else self._certificates.credentials()
        return str(bind(self._server, parse_address(address), credentials))

    async def start(self) -> None:
        """Start to serve calls."""
        await self._health.start()
        await self._server.start()

    async def refuse(self) -> None:
        """Report NOT_SERVING and end the watches; other calls go on."""
        self._endless.end(WATCHES)
        await self._health.refuse()

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, and cancel those that still run after `grace` seconds (None: at once)."""
        await self._health.stop()
        self._endless.end(ENDLESS)
        await self._server.stop(grace)


def _add_vllm(engine: Engine, model_name: str, server: grpc.aio.Server) -> None:
    """Add vLLM's service; its library is imported only where it is served."""
    from smg_grpc_proto.generated.vllm_engine_pb2_grpc import add_VllmEngineServicer_to_server

    from headrace_engine.service.vllm.vllm_servicer import VllmServicer

    add_VllmEngineServicer_to_server(VllmServicer(engine, model_name), server)
