"""Read requests: wait for tokens and ends, and list pages of requests."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace

from headrace_engine.engine.requests.open_streams import OpenStreams
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.results.prompt_log import MAX_READ_BYTES, require_prompt_log
from headrace_engine.errors import InvalidArgument, NotFound
from headrace_engine.request_types import RequestView
from headrace_engine.result_types import Elements, GenerateStatus, ReadResult

MAX_PAGE = 1000
DEFAULT_PAGE = 100

_TOKEN = re.compile(r"(?P<arrival>[0-9]{1,21})-(?P<serial>[0-9]{1,18})")


class Reading:
    """Read-only calls on requests; each counts as a reader while it lasts.

    Args:
        streams: counts the calls that stream results.
    """

    def __init__(self, streams: OpenStreams) -> None:
        self._streams = streams

    async def sync(self, requests: Sequence[Request]) -> list[RequestView]:
        """Wait until these requests have ended.

        Raises:
            NotFound: one was released before its end.
        """
        with _readers(requests):
            for request in requests:
                await request.wait_end()
        return [request.view(with_config=False) for request in requests]

    async def sync_all(self, requests: Sequence[Request]) -> list[RequestView]:
        """Wait until these requests have ended or were released."""
        with _readers(requests):
            for request in requests:
                with suppress(NotFound):
                    await request.wait_end()
        return [request.view(with_config=False) for request in requests]

    async def get(
        self, request: Request, index: int, from_position: int | None, prompt_from: int | None, wait: float
    ) -> tuple[RequestView, Elements | None]:
        """Return a request and its unread tokens at a position, after at most `wait` seconds for these or for the end.

        Args:
            prompt_from: index in the prompt from which the view includes prompt logprobs; None: it includes none.

        Raises:
            NotFound: no such sequence, or the request was released during the wait.
            OutOfRange: a position is outside the log, or the prompt.
            InvalidArgument: an index without a position, an invalid wait, or no prompt logprobs were requested.
        """
        if from_position is None and index:
            raise InvalidArgument.field("index", f"= {index} needs from_position")
        if not 0 <= wait < math.inf:
            raise InvalidArgument.field("wait", f"= {wait:g} s is out of range; allowed: at least 0")
        log = request.sequence(index).log
        if from_position is not None:
            log.check_position(from_position)
        if prompt_from is not None:
            require_prompt_log(request.prompt).check_position(prompt_from)
        with _readers([request]):  # A call that does not wait is a reader too: the lease begins anew.
            if wait > 0:
                waited = request.wait_end() if from_position is None else log.wait(from_position)
                with suppress(TimeoutError):
                    await asyncio.wait_for(waited, wait)
        found = None if from_position is None else log.read(from_position)
        elements = found.elements if found else None
        view = request.view(with_config=True)
        if prompt_from is not None:
            left = MAX_READ_BYTES - (log.message_bytes(elements) if elements else 0)  # Both go into one message.
            view = replace(view, prompt_logprobs=require_prompt_log(request.prompt).read(prompt_from, left))
        return view, elements

    def follow(self, request: Request, index: int, from_position: int) -> AsyncGenerator[ReadResult, None]:
        """Return an iterator over everything from a position on, then the end.

        Raises:
            NotFound, OutOfRange: by the call itself.
        """
        request.sequence(index).log.check_position(from_position)
        return self._follow(request, index, from_position)

    async def generated(self, request: Request) -> AsyncGenerator[tuple[int, ReadResult], None]:
        """Yield as `follow_all`, and before each result the new prompt logprobs.

        They are complete before the first token, but a sequence may end while its prompt is still being computed.
        """
        sent = 0
        async with aclosing(self.follow_all(request)) as results:
            async for index, result in results:
                for piece in () if request.prompt is None else request.prompt.pieces(sent):
                    sent = piece.position + len(piece.token_ids)
                    yield index, ReadResult(GenerateStatus.INIT, prompt=piece)
                yield index, result

    async def follow_all(self, request: Request) -> AsyncGenerator[tuple[int, ReadResult], None]:
        """Yield the results of all sequences as they arrive, each with the sequence's index."""
        streams = [self._follow(request, sequence.index, 0) for sequence in request.sequences]
        waiting = {asyncio.ensure_future(anext(stream)): index for index, stream in enumerate(streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index = waiting[task]
                    with suppress(StopAsyncIteration):
                        yield index, task.result()
                        waiting[asyncio.ensure_future(anext(streams[index]))] = index
                    del waiting[task]  # Not earlier: what a reader who leaves has not taken is taken below.
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for stream in streams:
                await stream.aclose()

    async def _follow(self, request: Request, index: int, position: int) -> AsyncGenerator[ReadResult, None]:
        log = request.sequence(index).log
        self._streams.begin()
        try:
            with _readers([request]):
                while True:
                    await log.wait(position)
                    result = log.read(position)
                    if result is None:
                        continue
                    yield result
                    if result.end is not None:
                        return
                    if result.elements is not None:
                        position += len(result.elements.token_ids)
        finally:
            self._streams.end()


def page_of(requests: Sequence[Request], page_size: int, page_token: str) -> tuple[list[RequestView], str]:
    """Return a page of requests, latest arrival first, and the token of the next page ("" after the last).

    Raises:
        InvalidArgument: the size is out of range, or the token is invalid.
    """
    if not 0 <= page_size <= MAX_PAGE:
        raise InvalidArgument.field("page_size", f"= {page_size} is out of range; allowed: 0 to {MAX_PAGE}")
    left = sorted(_after(requests, page_token), key=_order, reverse=True)
    page = left[: page_size or DEFAULT_PAGE]
    following = "{}-{}".format(*page[-1].order) if len(left) > len(page) else ""
    return [request.view(with_config=False) for request in page], following


def _after(requests: Sequence[Request], page_token: str) -> Sequence[Request]:
    """Return the requests that follow a page."""
    if not page_token:
        return requests
    parts = _TOKEN.fullmatch(page_token)
    if parts is None:
        raise InvalidArgument.field("page_token", f"= {page_token!r} is no token of an earlier page")
    last = int(parts["arrival"]), int(parts["serial"])
    return [request for request in requests if request.order < last]


def _order(request: Request) -> tuple[int, int]:
    return request.order


@contextmanager
def _readers(requests: Sequence[Request]) -> Iterator[None]:
    for request in requests:
        request.arrive()
    try:
        yield
    finally:
        for request in requests:
            request.leave()
