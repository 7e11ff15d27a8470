"""The gateway process: bind, serve, drain."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from headrace_proto.pure.addresses import is_local
from headrace_proto.pure.collecting import freeze_objects
from headrace_proto.server import reflection
from headrace_proto.server.ending import GRACE, Ending
from headrace_proto.server.listening import bind
from headrace_proto.server.logs import logger
from headrace_proto.server.options import SERVER_OPTIONS
from headrace_proto.v1 import (
    engine_service_pb2_grpc,
    model_service_pb2_grpc,
    request_service_pb2_grpc,
)

from headrace_gateway.access.access import Access
from headrace_gateway.access.keyring import LOOK_SECONDS, Keyring
from headrace_gateway.engine_servicer import EngineServicer
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.forwarding.calls import LiveCalls, StatusInterceptor
from headrace_gateway.forwarding.owed_releases import OwedReleases
from headrace_gateway.forwarding.routing import Router
from headrace_gateway.health import GatewayHealth
from headrace_gateway.membership import membership_of
from headrace_gateway.model_servicer import ModelServicer
from headrace_gateway.options import GatewayOptions
from headrace_gateway.request_servicer import RequestServicer
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.sessions import Sessions

if TYPE_CHECKING:
    from headrace_gateway.http.server import HttpServer

log = logger(__name__)

_CLOSE_SECONDS = 2.5
"""Less than CUT_GRACE, at which a second signal ends the process."""

_SERVER_OPTIONS = (*SERVER_OPTIONS, ("grpc.max_concurrent_streams", 10_000))


class Gateway:
    """A gateway: the three services, health and reflection in front of a list of engines.

    Args:
        options: of the command line.
        limits: of session streams; default: those of the contract.

    Raises:
        KeyFileError: the key file cannot be used.

    Attributes:
        access: which calls callers may make.
        calls: the calls in progress.
        sessions: the session streams of clients.
        pool: the engines.
        address: address it listens on; has the real port once started.
        http: the HTTP side; None: there is none.
    """

    def __init__(self, options: GatewayOptions, limits: SessionLimits | None = None) -> None:
        self._options = options
        self.address = options.listen
        self.calls = LiveCalls()
        self.access = Access(None if options.keys_file is None else Keyring(options.keys_file))
        self.pool = EnginePool(
            membership_of(options),
            interval=options.poll_interval,
            timeout=options.poll_timeout,
            security=options.engine_security,
            spares=options.spares,
        )
        self._router = Router(self.pool, affinity=options.affinity)
        self._instance_id = secrets.token_hex(16)
        self.sessions = Sessions(
            options.name,
            self._instance_id,
            self._router.of_handle,
            self.calls,
            limits or SessionLimits(),
            self.access.uses,
        )
        self._owed = OwedReleases()
        self._health = GatewayHealth(self.pool)
        self._revoking: asyncio.Task[None] | None = None
        self.http: HttpServer | None = None
        self._server = grpc.aio.server(
            options=_SERVER_OPTIONS, interceptors=[StatusInterceptor(self.calls, self.access)]
        )
        self._register()

    async def start(self) -> None:
        """Listen, and start to poll the engines.

        Raises:
            ListenError: the address is in use, or not an address of this machine.
            CertificateError: a file of its certificate cannot be used.
        """
        certificates = self._options.certificates
        credentials = None if certificates is None else certificates.credentials()
        self.address = bind(self._server, self._options.listen, credentials)
        await self._health.start()
        await self.pool.start(self.sessions.follow, self._leave)
        await self._server.start()
        if self._options.keys_file is not None:
            self._revoking = asyncio.create_task(self._revoke(), name="headrace-keys")
        engines = {engine.name: str(engine.address) for engine in self.pool.engines}
        if self._options.keys_file is not None and credentials is None and not is_local(str(self.address)):
            log.warning("keys_in_plaintext", address=str(self.address), advice="encrypt: --tls-cert and --tls-key")
        also = {}
        if self.http is not None:
            await self.http.start()
            also["http"] = str(self.http.address)
        log.info("listening", address=str(self.address), port=self.address.port, engines=engines, **also)

    async def drain(self) -> None:
        """Refuse new work, wait up to `drain_limit` seconds for the calls in progress, and close."""
        limit = self._options.drain_limit
        await self._health.stop()
        log.info("draining", streams=self.calls.count, limit_s=limit)
        left = await self.calls.drain(limit)
        if left:
            log.warning("drain_limit_reached", streams=left, limit_s=limit)
        await self.close()

    async def close(self) -> None:
        """Close everything. Calls in progress get _CLOSE_SECONDS to send their status."""
        await self._health.stop()
        if self._revoking is not None:
            self._revoking.cancel()
        if self.http is not None:
            await self.http.close()
        await self._server.stop(_CLOSE_SECONDS)
        await self.sessions.close()
        await self._owed.close()
        await self.pool.close()
        log.info("stopped")

    async def _leave(self, engine: Engine) -> None:
        """Give up what was read from an engine that is gone, and what it was still to be told."""
        await self.sessions.leave(engine)
        await self._owed.leave(engine)

    async def _revoke(self) -> None:
        """End the calls of keys that were taken out of their file."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.calls.revoke(self.access.valid)

    def _register(self) -> None:
        requests = RequestServicer(self.pool, self._router, self.calls, self.sessions, self._owed, self.access)
        facts = EngineServicer(self._options.name, self._instance_id, self.pool, self._router, self.calls)
        models = ModelServicer(self.pool, self.calls)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(models, self._server)
        request_service_pb2_grpc.add_RequestServiceServicer_to_server(requests, self._server)
        engine_service_pb2_grpc.add_EngineServiceServicer_to_server(facts, self._server)
        if self._options.http is not None:
            servicers = {
                "headrace.v1.ModelService": models,
                "headrace.v1.RequestService": requests,
                "headrace.v1.EngineService": facts,
            }
            self.http = http_server(
                self._options.http,
                servicers,
                self.calls,
                self.access,
                self._options.certificates,
                lambda: self._health.serves,
            )
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        if self._options.reflection:
            reflection.enable(self._server)


def http_server(*given: Any) -> HttpServer:
    """Return the HTTP side; its libraries are imported only where it is used."""
    from headrace_gateway.http.server import HttpServer

    return HttpServer(*given)


def _not_ended(threads: list[str]) -> None:
    log.error("not_ended_in_time", threads=threads)


async def serve(options: GatewayOptions) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it; a second signal ends the drain at once.

    Raises:
        ListenError: it cannot listen.
    """
    gateway, stop = Gateway(options), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            gateway.calls.cut()
        stop.set()

    Ending(options.drain_limit + GRACE, on_signal, _not_ended).take()  # before anyone can see that it runs
    await gateway.start()
    freeze_objects()
    await stop.wait()
    await gateway.drain()
