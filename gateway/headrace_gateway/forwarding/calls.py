"""The calls in progress: counted for the drain; the one place where failures become statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NoReturn

import grpc
from headrace_proto.pure.faults import is_fault
from headrace_proto.pure.host_shares import HostShares, host_of
from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.interceptor import WATCHES, CallInterceptor, Context, Method
from headrace_proto.server.logs import logger
from headrace_proto.server.status import abort
from headrace_proto.server.traces import note_trace

from headrace_gateway import status
from headrace_gateway.access import callers, refusals
from headrace_gateway.access.access import Access
from headrace_gateway.faults import defect
from headrace_gateway.forwarding.call_counts import GRPC, CallCounts, Outcome
from headrace_gateway.status import CallError

log = logger(__name__)

_FACTS = ("request_id", "handle", "model_name")
_refusals = LogBudget()

MAX_CALLS = 4000
"""Maximum concurrent calls. An engine accepts 4,096 streams per connection, and the gateway polls over it too."""

MAX_SESSIONS = 4096
"""Maximum concurrent sessions."""


class LiveCalls:
    """The calls in progress. Those that never end by themselves are kept apart.

    Attributes:
        draining: the gateway refuses new work.
        on_drain: called when the drain begins.
        counts: of those that have ended.
    """

    def __init__(self) -> None:
        self.counts = CallCounts()
        self.draining = False
        self.on_drain: list[Callable[[], None]] = []
        self._awaited: set[asyncio.Task[Any]] = set()
        self._endless: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._callers: dict[asyncio.Task[Any], callers.Caller] = {}
        self._revoked: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = HostShares(MAX_CALLS)
        self._sessions = HostShares(MAX_SESSIONS)

    @property
    def count(self) -> int:
        """Number of calls that will end by themselves."""
        return len(self._awaited)

    @property
    def held(self) -> tuple[int, int]:
        """Numbers of calls and of sessions in progress."""
        return self._calls.taken, self._sessions.taken

    @contextmanager
    def entered(self, method: str) -> Iterator[None]:
        """Count the current task as a call of `method`, such as "Generate"."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs in a task")
        group = self._endless if method in WATCHES else self._awaited
        # A call is its task: from here until it leaves, a drain or a lost key may cancel it.
        group.add(task)
        self._update_idle()
        try:
            yield
        finally:
            group.discard(task)
            self._cut.discard(task)
            self._revoked.discard(task)
            self._callers.pop(task, None)
            self._update_idle()

    def sharing(self, method: str, peer: str) -> AbstractContextManager[None]:
        """Return a context that counts a call of `method` against the share of its host and connection.

        Raises:
            CallError: QUEUE_FULL, its host or connection has used up its share; DRAINING, it is a watch, and the
                gateway is draining.
        """
        if method in WATCHES:
            self.refuse_if_draining()
        ours, what = (self._sessions, "sessions") if method == "Session" else (self._calls, "calls")
        if not ours.can_take(peer):
            raise status.full_calls(ours.refusal(peer, f"{what} in progress"))
        return ours.holding(peer)

    def refuse_if_draining(self) -> None:
        """Refuse new work in a gateway that is shutting down.

        Raises:
            CallError: DRAINING.
        """
        if self.draining:
            raise status.draining()

    async def drain(self, limit: float) -> int:
        """End watches, wait up to `limit` seconds for the other calls, cut the rest, and return how many were cut."""
        self.draining = True
        for notify in self.on_drain:
            notify()
        self._end(self._endless)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._idle.wait()
        left = self.count
        self.cut()
        return left

    def cut(self) -> None:
        """Cancel the calls that a drain waits for; each fails with DRAINING."""
        self._end(self._awaited)

    def was_cut(self) -> bool:
        """True if `drain` or `cut` cancelled the current task, rather than its client."""
        task = asyncio.current_task()
        return task in self._cut

    def belong(self, caller: callers.Caller) -> None:
        """Note whose call the current task is; it was entered."""
        task = asyncio.current_task()
        if task is not None and caller.key is not None:
            self._callers[task] = caller

    def revoke(self, valid: Callable[[callers.Caller], bool]) -> None:
        """Cancel the calls of callers that are not valid any more; each fails with BAD_API_KEY."""
        for task, caller in list(self._callers.items()):
            if task not in self._revoked and not valid(caller):
                self._revoked.add(task)
                task.cancel()

    def was_revoked(self) -> bool:
        """True if `revoke` cancelled the current task."""
        return asyncio.current_task() in self._revoked

    def _end(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in list(tasks):
            # Noted first: by this the task knows that it was not its client who cancelled it.
            self._cut.add(task)
            task.cancel()

    def _update_idle(self) -> None:
        if self._awaited:
            self._idle.clear()
        else:
            self._idle.set()


class StatusInterceptor(CallInterceptor):
    """Counts each call, and maps what its servicer raises to the status of the call.

    Args:
        calls: where calls are counted.
        access: which calls a caller may make.
    """

    def __init__(self, calls: LiveCalls, access: Access) -> None:
        super().__init__(status.no_request)
        self._calls = calls
        self._access = access

    async def serve(self, method: Method, data: Any, context: Context) -> Any:
        """Serve one call. Calls of health and reflection are not counted."""
        if not method.ours:
            return await self._serve(method, data, context, Outcome())
        with self._calls.counts.counting(GRPC, method.name) as outcome:
            return await self._serve(method, data, context, outcome)

    async def _serve(self, method: Method, data: Any, context: Context, outcome: Outcome) -> Any:
        request = None
        with self._calls.entered(method.name) if method.ours else nullcontext():
            try:
                outcome.key = self._identify(method, context)
                if not method.ours:
                    return await method.run(await self.request(method, data, context), context, context.write)
                with self._calls.sharing(method.name, context.peer()):
                    request = await self.request(method, data, context)
                    if not method.streams_in:  # messages of a session are checked as they come
                        self._access.check(callers.current(), method.name, request)
                    return await method.behaviour(request, context)
            except CallError as error:
                failure = error
            except asyncio.CancelledError:
                failure = self._cancelled()
            except grpc.aio.BaseError:
                raise
            except BaseException as error:
                if not is_fault(error):
                    raise
                failure = defect(method.name, error)
            outcome.code, outcome.reason = failure.code.name, failure.reason
            return await _answer(method.name, request, context, failure)

    def _identify(self, method: Method, context: Context) -> str:
        """Find out who calls; return the key's name. Calls of the health service are open to everyone."""
        name = ""
        if not method.open:
            metadata = dict(context.invocation_metadata() or ())
            note_trace(metadata)
            caller = self._access.caller(metadata)
            callers.note(caller)
            if method.ours:
                self._calls.belong(caller)
            name = caller.key.name if caller.key is not None else ""
        return name

    def _cancelled(self) -> CallError:
        """Return the failure of a cancelled call. Raise CancelledError if its client cancelled: no status is sent."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return status.fault("CancelledError")
        if self._calls.was_revoked():
            return refusals.key_taken_away()
        if not self._calls.was_cut():
            raise asyncio.CancelledError
        return status.draining()


async def _answer(method: str, request: Any, context: Context, failure: CallError) -> NoReturn:
    """Log a refusal and abort the call. Only names and reasons are logged: messages may quote what a user sent."""
    facts: dict[str, Any] = {name: status.shorten(text) for name in _FACTS if (text := getattr(request, name, ""))}
    about, host = facts.get("handle") or facts.get("request_id", ""), host_of(context.peer())
    omitted = _refusals.line((method, failure.reason), about, host)
    if omitted is not None:
        log.info("request_refused", method=method, code=failure.code.name, reason=failure.reason, **facts, **omitted)
    await abort(context, failure.status)
