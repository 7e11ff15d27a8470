"""ListRequests over several engines: their pages are merged by arrival time under one page token.

The token holds the arrival of the last request returned, and for each engine the token of its current page and the
handle of its last request returned. So a page that was returned only in part is fetched again, and the gateway keeps
no state. An engine that cannot be reached is named in each page that lacks its requests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_proto.v1 import request_pb2, request_service_pb2

from headrace_gateway import status
from headrace_gateway.engines.engine import Engine
from headrace_gateway.forwarding.fan_out import together
from headrace_gateway.status import CallError

DEFAULT_PAGE = 100
LARGEST_PAGE = 1000

Request = request_service_pb2.ListRequestsRequest
State = request_pb2.RequestState
AskPage = Callable[[Engine, Request], Awaitable[request_service_pb2.ListRequestsResponse]]


@dataclass
class Cursor:
    """Position in the list of one engine.

    Attributes:
        token: token of the engine's current page; None after its last page.
        handle: handle of its last request returned; "" before the first.
    """

    token: str | None = ""
    handle: str = ""


@dataclass
class Source:
    """One engine's list while a page is being assembled.

    Attributes:
        engine: the engine.
        cursor: position in its list.
        bound: arrival of the last request returned from any list, in nanoseconds since the epoch. Requests that
            arrived later are newer than the first page and left out. None before the first.
        waiting: requests fetched and not yet returned.
        following: token of the engine's next page.
        failure: why the engine cannot be asked.
    """

    engine: Engine
    cursor: Cursor
    bound: int | None
    waiting: deque[State] = field(default_factory=deque)
    following: str = ""
    failure: CallError | None = None

    @property
    def ended(self) -> bool:
        """True if every request was returned, of those that the engine can be asked for."""
        return not self.waiting and (self.cursor.token is None or self.failure is not None)

    async def fill(self, ask: AskPage, request: Request, may_see: Callable[[str], bool]) -> None:
        """Fetch pages until a request waits, the list has ended, or the engine cannot be reached."""
        while not self.ended and not self.waiting:
            page = Request()
            page.CopyFrom(request)
            page.page_token = self.cursor.token or ""
            try:
                answer = await ask(self.engine, page)
            except CallError as error:
                if error.reason != "ENGINE_UNREACHABLE":
                    raise
                self.failure = error
                return
            unseen = (one for one in self._unseen(answer.requests) if may_see(one.request.model_name))
            self.waiting, self.following = deque(unseen), answer.next_page_token
            self._turn_page()

    def take(self) -> State:
        """Return the newest request waiting."""
        state = self.waiting.popleft()
        self.cursor.handle = state.request.handle
        self._turn_page()
        return state

    def _unseen(self, states: Sequence[State]) -> list[State]:
        """Return the requests after the last one returned; if that is gone, those that are not newer than `bound`."""
        for index, state in enumerate(states):
            if state.request.handle == self.cursor.handle:
                return list(states[index + 1 :])
        return [state for state in states if not _newer(state, self.bound)]

    def _turn_page(self) -> None:
        if not self.waiting:
            self.cursor.token = self.following or None


async def merged_page(engines: Sequence[Engine], request: Request, ask: AskPage, may_see: Callable[[str], bool]) -> Any:
    """Return one page of all engines' requests, newest first.

    Args:
        engines: engines to ask.
        request: the client's request.
        ask: fetches one page of one engine.
        may_see: says whether the caller may know of a model.

    Raises:
        CallError: INVALID_FIELD for the page's size or token; the failure of an engine, but for ENGINE_UNREACHABLE
            only where no engine can be reached.
    """
    size = _page_size(request)
    bound, cursors = _read(request)
    sources = [Source(engine, cursors.get(engine.name, Cursor()), bound) for engine in engines]
    states: list[State] = []
    while len(states) < size:
        empty = [source for source in sources if not source.waiting and not source.ended]
        if empty:
            await together([source.fill(ask, request, may_see) for source in empty])
        ready = [source for source in sources if source.waiting]
        if not ready:
            break
        state = max(ready, key=lambda source: _sort_key(source.waiting[0])).take()
        states.append(state)
        bound = bound if _arrival(state) is None else _arrival(state)
    missing = [(source.engine.name, source.failure) for source in sources if source.failure is not None]
    if missing and len(missing) == len(sources):
        raise missing[0][1]
    token = "" if all(source.ended for source in sources) else _write(request, bound, sources)
    return request_service_pb2.ListRequestsResponse(
        requests=states,
        next_page_token=token,
        missing=[request_service_pb2.MissingEngine(engine=name, failure=error.status) for name, error in missing],
    )


def _arrival(state: State) -> int | None:
    """Return the arrival of a request in nanoseconds since the Unix epoch; None while it has no sequences yet."""
    return state.sequences[0].stat.arrival_time.ToNanoseconds() if state.sequences else None


def _sort_key(state: State) -> float:
    """Key of the merged list. A request without an arrival comes first, so as not to hold up those behind it."""
    arrived = _arrival(state)
    return float("inf") if arrived is None else arrived


def _newer(state: State, bound: int | None) -> bool:
    arrived = _arrival(state)
    return bound is not None and arrived is not None and arrived > bound


def _page_size(request: Request) -> int:
    if request.page_size > LARGEST_PAGE:
        raise status.invalid_field("page_size", f"= {request.page_size} is too large; allowed: at most {LARGEST_PAGE}")
    return request.page_size or DEFAULT_PAGE


def _question(request: Request) -> str:
    """Return a digest of the listing's filters: a token of one list must not be used with another."""
    text = json.dumps([request.model_name, request.running_only])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _write(request: Request, bound: int | None, sources: Sequence[Source]) -> str:
    engines = {source.engine.name: [source.cursor.token, source.cursor.handle] for source in sources}
    return base64.urlsafe_b64encode(json.dumps([_question(request), bound, engines]).encode()).decode()


def _read(request: Request) -> tuple[int | None, dict[str, Cursor]]:
    if not request.page_token:
        return None, {}
    try:
        question, bound, engines = json.loads(base64.urlsafe_b64decode(request.page_token))
        cursors = {name: _cursor(*parts) for name, parts in engines.items()}
        bound = None if bound is None else int(bound)
    except (ValueError, TypeError, AttributeError, binascii.Error):
        raise status.invalid_field("page_token", "is not a token that this call returned") from None
    if question != _question(request):
        raise status.invalid_field("page_token", "belongs to a list with another model_name or running_only")
    return bound, cursors


def _cursor(token: object, handle: object) -> Cursor:
    if not (token is None or isinstance(token, str)) or not isinstance(handle, str):
        raise ValueError("no cursor")
    return Cursor(token, handle)
