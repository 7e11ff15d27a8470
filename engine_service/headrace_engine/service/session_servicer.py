"""RequestService.Session: one stream that carries all sequences of a client or gateway.

Whoever reaches an engine is trusted, so every session may name owners and ask for load figures; a gateway refuses its
clients both. A client that says nothing for 30 s gets UNAVAILABLE with SESSION_SILENT; one whose engine goes away is
told everything and that this was all, ends its half, and gets UNAVAILABLE with DRAINING. One that ends its half
otherwise is told what is there, and the call ends with OK.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse

from headrace_engine.engine.engine import Engine
from headrace_engine.engine.sessions.session import EngineSession
from headrace_engine.errors import InvalidArgument
from headrace_engine.service.convert.session import apply_in_portions, check_options, session_response
from headrace_engine.service.failures import closing, fault
from headrace_engine.service.logs import logger

_log = logger(__name__)


async def serve_session(engine: Engine, requests: AsyncIterator[SessionRequest]) -> AsyncIterator[SessionResponse]:
    """Answer a stream of messages until its client leaves.

    Raises:
        InvalidArgument: the client broke the rules of the stream.
        Unavailable: it was silent for too long, or the engine goes away.
    """
    session = engine.sessions.open()

    def lose(channel: int, error: BaseException) -> None:
        session.lose(channel, fault(_log.bind(method="Session"), error, {}))

    listening = asyncio.create_task(_listen(requests, session))
    try:
        while (update := await session.next()) is not None:
            yield session_response(update, engine.name, engine.instance_id, lose)
    finally:
        session.close()
        listening.cancel()
        await asyncio.wait([listening])


async def _listen(requests: AsyncIterator[SessionRequest], session: EngineSession) -> None:
    """Let a session hear its client. What goes wrong here is raised by the session's `next`."""
    try:
        async with closing(requests) as messages:
            await _hear(messages, session)
    except BaseException as error:
        if not is_fault(error):
            raise
        session.fail(error)
    else:
        session.leave()


async def _hear(messages: AsyncIterator[SessionRequest], session: EngineSession) -> None:
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
    session.open(load=message.options.load)
    _log.debug("session_opened", client=message.options.client)
