"""Where the text of a response is read from: the gateway that started it, or its log through any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace import AsyncClient, AsyncResultQueue
from headrace.errors import HeadraceError
from headrace.types import AcceptedRequest, GeneratedElements, RequestInfo
from headrace_proto.pure.faults import is_fault

from headrace_gateway.faults import defect
from headrace_gateway.http.answers.parting import Parting
from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.exchange import Passing
from headrace_gateway.http.failures import Failure, failure_of, refusal_of
from headrace_gateway.http.generation import Text
from headrace_gateway.http.openai.responses.answer import Response, status_of
from headrace_gateway.http.openai.responses.outline import Outline
from headrace_gateway.http.openai.responses.request import NAMES

_AT_ONCE = 256
"""Pieces that a reader is given at once: what it does not read waits as text that all share."""


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
        said: counts what was read, and gets how it ended.
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
