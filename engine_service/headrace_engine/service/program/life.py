"""Lifecycle of the service: start, serve, and drain without losing running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from headrace_proto.server.ending import GRACE, Ending
from headrace_proto.server.listening import ListenError
from headrace_proto.server.logs import logger
from headrace_proto.server.tls import CertificateError

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.model_paths import absent_roots
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.engine import Engine
from headrace_engine.engine.models.kept_models import Replaced
from headrace_engine.errors import AlreadyExists, BadModel, HeadraceError, InvalidArgument
from headrace_engine.service.metrics.server import MetricsServer
from headrace_engine.service.program.announcer import Announcer
from headrace_engine.service.program.arguments import Arguments
from headrace_engine.service.program.freezing import freeze_models
from headrace_engine.service.server import EngineServer

FLUSH = 5.0
"""Seconds that calls have to end after the drain."""

_Result = TypeVar("_Result")

_log = logger(__name__)


def _not_ended(threads: list[str]) -> None:
    _log.error("not_ended_in_time", threads=threads)


class Service:
    """Runs an engine and its server, from start to shutdown."""

    def __init__(self, arguments: Arguments, engine: Engine) -> None:
        self._arguments = arguments
        self._engine = engine
        self._server = EngineServer(
            engine,
            reflection=arguments.reflection,
            certificates=arguments.certificates,
            secrets=arguments.secrets,
            vllm_model=arguments.vllm_model,
        )
        self._metrics = MetricsServer(engine)
        self._also: dict[str, str] = {}
        self._stop = asyncio.Event()
        self._ending = Ending(arguments.drain_limit + GRACE, self._take_signal, _not_ended)
        self._signals = 0
        self._drain: asyncio.Task[None] | None = None
        self._exit_status = 0

    async def run(self) -> int:
        """Serve until a signal. Return the exit status."""
        self._ending.take()
        try:
            address = self._server.listen(self._arguments.listen)
            if self._arguments.metrics is not None:
                self._also["metrics"] = str(await self._metrics.listen(self._arguments.metrics))
            replaced = await self._unless_stopped(self._engine.start(self._arguments.models))
        except (ListenError, CertificateError, HeadraceError) as error:
            return await self._give_up(error)
        try:
            if replaced is not None:
                await self._serve(address, replaced)
        finally:
            await self._shut_down()
        return 1 if self._cut else self._exit_status

    async def _serve(self, address: str, replaced: list[Replaced]) -> None:
        for one in replaced:
            _log.warning("stored_model_replaced", model=one.model_name, changes=one.changes)
        await self._run_all(address)

    async def _unless_stopped(self, work: Coroutine[Any, Any, _Result]) -> _Result | None:
        """Return the result of `work`; None if a signal came first and cancelled it."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait([working])
        return None

    async def _give_up(self, error: ListenError | CertificateError | HeadraceError) -> int:
        """Log why the service cannot start, and close everything. Return the exit status."""
        event = "listen_failed" if isinstance(error, ListenError | CertificateError) else "start_refused"
        _log.error(event, reason=str(error))
        self._ending.begin()
        await self._engine.close()
        await self._server.stop(None)
        await self._metrics.close()
        return 1

    def _take_signal(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._cut and self._drain is not None:
            self._drain.cancel()

    @property
    def _cut(self) -> bool:
        """True after a second signal."""
        return self._signals > 1

    async def _run_all(self, address: str) -> None:
        """Log model states, install models and serve, until a signal."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(Announcer(self._engine).run()), group.create_task(freeze_models(self._engine))]
            tasks += [group.create_task(self._bring_up(config)) for config in self._arguments.models]
            await asyncio.sleep(0)  # so that the first caller finds those models INSTALLING rather than unknown
            await self._server.start()
            options = self._arguments.engine
            _log.info("listening", address=address, backend=options.backend, model_roots=_roots(options), **self._also)
            _warn_of_absent_roots(options)
            await self._stop.wait()
            for task in tasks:
                task.cancel()

    async def _bring_up(self, config: RuntimeConfig) -> None:
        """Install and start a model. One that cannot be read ends the program; one that fails later stays FAILED."""
        installed = False
        try:
            # First request the state RUNNING without waiting in between, so that callers wait for the model.
            await self._engine.install_model(config, no_wait=True)
            await self._engine.start_model(config.model_name, no_wait=True)
            await self._engine.install_model(config)
            installed = True
            await self._engine.start_model(config.model_name)
        except HeadraceError as error:
            _log.error("model_not_started", model=config.model_name, reason=error.reason, failure=error.message)
            if not installed and isinstance(error, InvalidArgument | AlreadyExists | BadModel):
                self._exit_status = 1
                self._stop.set()

    async def _shut_down(self) -> None:
        self._ending.begin()
        self._engine.refuse()  # before the log says so
        self._log_drain()
        await self._server.refuse()
        if not self._cut:
            self._drain = asyncio.create_task(self._let_end(self._arguments.drain_limit))
            with suppress(asyncio.CancelledError):  # only a second signal cancels it
                await self._drain
        await self._server.stop(None if self._cut else FLUSH)
        await self._metrics.close()
        await self._engine.close()
        _log.info("stopped", cut=self._cut)

    async def _let_end(self, limit: float) -> None:
        """Wait for requests to end and their readers to get everything, up to `limit` seconds in total."""
        clock = asyncio.get_running_loop().time
        end = clock() + limit
        await self._engine.drain(limit)
        await self._engine.sessions.streams.ended(max(0.0, end - clock()))

    def _log_drain(self) -> None:
        requests = self._engine.live_requests
        if requests:
            _log.info("draining", requests=requests, limit_s=self._arguments.drain_limit)
        else:
            _log.info("stopping")


def _roots(options: EngineOptions) -> list[str] | str:
    """Return the folders that callers may install models from, for the log."""
    if not options.model_roots:
        return "none: callers cannot install models by path (--model-root DIR allows it)"
    return [str(root.absolute()) for root in options.model_roots]


def _warn_of_absent_roots(options: EngineOptions) -> None:
    """Warn about model roots that do not exist, such as a typing error or a missing mount."""
    for root in absent_roots(options.model_roots or ()):
        reason = "no such directory: check --model-root, or mount it"
        _log.warning("model_root_absent", model_root=str(root.absolute()), reason=reason)
