"""Stored responses: followed by the gateway that started them, and readable from their logs through any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace import AsyncClient, AsyncResultQueue
from headrace.errors import HeadraceError
from headrace.types import AcceptedRequest, GeneratedElements, RequestInfo
from headrace_proto.pure.faults import is_fault
from headrace_proto.pure.host_shares import host_of
from headrace_proto.pure.shares import Shares

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.faults import defect
from headrace_gateway.http.answers.parting import Parting
from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.callers import Caller
from headrace_gateway.http.exchange import Passing
from headrace_gateway.http.failures import Failure, failure_of, refusal_of
from headrace_gateway.http.generation import Text
from headrace_gateway.http.openai.responses.answer import Response, status_of
from headrace_gateway.http.openai.responses.outline import Outline
from headrace_gateway.http.openai.responses.request import NAMES

KEEP_SECONDS = 600.0
"""Seconds for which a stored response is kept after its end."""

MAX_BYTES = 256 << 20
"""Maximum bytes that stored responses may take in a gateway, shared by hosts."""

_AT_ONCE = 256
"""Pieces that a reader is given at once: what it does not read waits as text that all share."""

_FLAT = 64 << 10
"""Bytes that a response counts for, beside its body."""


class Source(Protocol):
    """Where a response is read from."""

    response: Response
    """The response as it began."""
    accepted: AcceptedRequest
    """Its request."""
    said: Text
    """What was read, and once all is, how it ended."""
    tools: Tools
    """Its tools, as far as they are known here."""

    async def reading(self) -> Passing[str]:
        """Begin to read the text that there is, and what comes, in pieces. It raises Failure, and so does `pass_on`."""


def parting_of(source: Source) -> Parting:
    """Return what parts the text of a response."""
    return Parting(source.accepted, source.tools, thoughts=True, prefix="call_")


def ended(source: Source, text: str) -> Response:
    """Return a response as it is after its end, with its whole text."""
    outline, parting = Outline(source.accepted.request_id), parting_of(source)
    complete = status_of(source.said) == "completed"
    for _ in (*outline.feed(parting.whole(text)), *outline.end(complete=complete)):
        pass
    return source.response.ended(source.said, outline.items, source.accepted.prompt_token_count)


async def text_of(source: Source) -> str:
    """Return the whole text of a response, once it has ended. Raises Failure."""
    pieces: list[str] = []

    def take(piece: str) -> bool:
        pieces.append(piece)
        return True

    await (await source.reading()).pass_on(take)
    return "".join(pieces)


class QueueReading:
    """Reads the text of a queue.

    Args:
        queue: the queue.
        said: counts what was read, and is told how it ended.
    """

    def __init__(self, queue: AsyncResultQueue, said: Text) -> None:
        self._queue, self._said = queue, said

    async def pass_on(self, take: Callable[[str], bool]) -> bool:
        """As `AsyncResultQueue.pass_on`. Raises Failure."""

        def counted(elements: GeneratedElements) -> bool:
            self._said.count(elements)
            return take(elements.text)

        try:
            over = await self._queue.pass_on(counted)
        except HeadraceError as error:
            raise failure_of(error, NAMES) from None
        if over:
            self._said.ended(self._queue)
        return over


class Followed:
    """A response that this gateway started, and reads to its end whoever else does: so it survives its engine.

    Args:
        queue: its queue.
        response: the response as it began.
        messages: its conversation.
        tools: its tools.

    Attributes:
        messages: the conversation, for the next response of it.
        task: reads it.
    """

    def __init__(
        self, queue: AsyncResultQueue, response: Response, messages: list[dict[str, Any]], tools: Tools
    ) -> None:
        self.response, self.accepted, self.messages, self.tools = response, queue.request, messages, tools
        self.said = Text()
        self._found: list[str] = []
        self._failure: Failure | None = None
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._follow(queue), name="headrace-http-response")

    @property
    def over(self) -> bool:
        """True once it has ended."""
        return self.task.done()

    def ended(self) -> Response:
        """Return the response as it is after its end."""
        if self._failure is not None:
            return self.response.failed(self._failure.message, self._failure.reason)
        return ended(self, "".join(self._found))

    async def reading(self) -> Passing[str]:
        """Begin to read it."""
        return _FollowedReading(self)

    async def wait(self, number: int) -> Sequence[str]:
        """Return some pieces from a number on, once there are any; none after the last one. Raises Failure."""
        while number >= len(self._found):
            if self._failure is not None:
                raise self._failure
            if self.over:
                break
            await self._news.wait()
        return self._found[number : number + _AT_ONCE]

    async def _follow(self, queue: AsyncResultQueue) -> None:
        try:
            await QueueReading(queue, self.said).pass_on(self._keep)
        except Failure as failure:
            self._failure = failure
        except BaseException as error:
            if not is_fault(error):
                raise
            self._failure = refusal_of(defect("responses", error))
        finally:
            asyncio.get_running_loop().call_soon(self._notify)  # Once the task is done.

    def _keep(self, piece: str) -> bool:
        self._found.append(piece)
        self._notify()
        return True

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class _FollowedReading:
    """Reads a response that this gateway follows. One of many readers."""

    def __init__(self, followed: Followed) -> None:
        self._followed, self._number = followed, 0

    async def pass_on(self, take: Callable[[str], bool]) -> bool:
        """As `AsyncResultQueue.pass_on`. Raises Failure."""
        while pieces := await self._followed.wait(self._number):
            self._number += len(pieces)
            if not take("".join(pieces)):
                return False
        return True


class Logged:
    """A response that another gateway started, read from its log. Its tools are not known here: see docs/http.md.

    Args:
        client: reads it.
        info: its request.
        response: the response as it began.
    """

    def __init__(self, client: AsyncClient, info: RequestInfo, response: Response) -> None:
        self.response, self.accepted, self.said = response, info.request, Text()
        self._client, self._handle, self.tools = client, info.handle, Tools()

    async def reading(self) -> Passing[str]:
        """Begin to read its log."""
        try:
            queue = await self._client.open_queue(self._handle, from_position=0)
        except HeadraceError as error:
            raise failure_of(error, NAMES) from None
        self.said = Text()
        return QueueReading(queue, self.said)


@dataclass(frozen=True, slots=True)
class _Held:
    """A response that is kept, what its host's share is charged for it, and what lets go of its client."""

    followed: Followed
    host: str
    cost: int
    let_go: Callable[[], None]


class Store:
    """The responses that this gateway follows, each until some time after its end.

    Args:
        release: releases a request by its handle.
        hold: keeps the client of the current caller open, until what it returns is called.
    """

    def __init__(self, release: Callable[[str], None], hold: Callable[[], Callable[[], None]]) -> None:
        self._release, self._hold = release, hold
        self._shares: Shares[str] = Shares(MAX_BYTES)
        self._held: dict[tuple[str, str], _Held] = {}

    def find(self, response_id: str) -> Followed | None:
        """Return a response of the current caller's owner; None if this gateway does not have it."""
        held = self._held.get(_key(response_id))
        return None if held is None else held.followed

    def reserve(self, caller: Caller, size: int) -> None:
        """Reserve bytes for a response, for `add` or `give_back`.

        Args:
            caller: whose it is.
            size: bytes of its body.

        Raises:
            Failure: 429, its host has used up its share.
        """
        host = host_of(caller.peer)
        if not self._shares.can_take(host, size + _FLAT):
            why = self._shares.refusal(host, "bytes of stored responses", "this client's host has")
            raise refusal_of(status.full_calls(why))
        self._shares.take(host, size + _FLAT)

    def give_back(self, caller: Caller, size: int) -> None:
        """Give back the bytes of a response that was not started."""
        self._shares.give_back(host_of(caller.peer), size + _FLAT)

    def add(self, followed: Followed, caller: Caller, size: int) -> None:
        """Keep a response, for which bytes are reserved."""
        name = followed.response.id
        self._held[_key(name)] = _Held(followed, host_of(caller.peer), size + _FLAT, self._hold())
        loop = asyncio.get_running_loop()
        followed.task.add_done_callback(lambda _: loop.call_later(KEEP_SECONDS, self.drop, name))

    def drop(self, response_id: str) -> None:
        """Release a response of the current caller's owner and forget it, if it is here."""
        held = self._held.pop(_key(response_id), None)
        if held is not None:
            held.followed.task.cancel()
            self._shares.give_back(held.host, held.cost)
            self._release(held.followed.accepted.handle)
            held.let_go()

    async def close(self) -> None:
        """Stop following. What runs in the background goes on, and can be read through another gateway."""
        tasks = [held.followed.task for held in self._held.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(response_id: str) -> tuple[str, str]:
    """Return what finds a response: for owners other than its own it does not exist."""
    return callers.current().owner, response_id
