"""RequestService.Session: one stream that carries all sequences that a client or gateway reads.

Clients of an engine are trusted, so every session may name owners and request load reports and cache events; a gateway
refuses these to its clients. A client that is silent for 30 s gets UNAVAILABLE with SESSION_SILENT. When the engine
shuts down, a client gets the remaining results and `closing`, half-closes, and gets UNAVAILABLE with DRAINING. A client
that half-closes by itself gets what is available, and the call ends with OK.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace_proto.pure.faults import is_fault
from headrace_proto.server.logs import logger
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse

from headrace_engine.engine.engine import Engine
from headrace_engine.engine.sessions.session import EngineSession
from headrace_engine.errors import InvalidArgument
from headrace_engine.service.convert.callers import check_owner
from headrace_engine.service.convert.session import apply_in_portions, check_options, session_response
from headrace_engine.service.failures import closing, fault

_log = logger(__name__)


async def serve_session(engine: Engine, requests: AsyncIterator[SessionRequest]) -> AsyncIterator[SessionResponse]:
    """Serve a session until its client leaves.

    Owns the session and the task that reads the client's messages: both end with this generator.

    Raises:
        InvalidArgument: the client sent something invalid.
        Unavailable: the client was silent for too long, or the engine is shutting down.
    """
    session = engine.sessions.open()

    def lose(channel: int, error: BaseException) -> None:
        session.lose(channel, fault(_log.bind(method="Session"), error, {}))

    reading = asyncio.create_task(_read(requests, session))
    try:
        while (update := await session.next()) is not None:
            yield session_response(update, engine.name, engine.instance_id, lose)
    finally:
        session.close()
        reading.cancel()
        await asyncio.wait([reading])


async def _read(requests: AsyncIterator[SessionRequest], session: EngineSession) -> None:
    """Apply a client's messages to its session. Failures are raised by the session's `next`."""
    try:
        async with closing(requests) as messages:
            await _apply_all(messages, session)
    except BaseException as error:
        if not is_fault(error):
            raise
        session.fail(error)
    else:
        session.leave()


async def _apply_all(messages: AsyncIterator[SessionRequest], session: EngineSession) -> None:
    first = True
    async for message in messages:
        session.heard()
        if first:
            _open(message, session)
        elif message.HasField("options"):
            raise InvalidArgument.field("options", "is set; only the first message of a session may have it")
        first = False
        for _ in apply_in_portions(message, session):
            await asyncio.sleep(0)


def _open(message: SessionRequest, session: EngineSession) -> None:
    check_options(message)
    options = message.options
    if options.usage:
        check_owner("all", "options.usage")
    session.open(load=options.load, cache_events=options.HasField("cache_events"), usage=options.usage)
    _log.debug("session_opened", client=options.client)
