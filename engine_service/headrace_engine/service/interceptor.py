"""Interceptor of all calls: aborts failed ones with gRPC statuses and typed details."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace_proto.server.interceptor import CallInterceptor, Context, Method
from headrace_proto.server.status import abort

from headrace_engine.errors import FieldViolation, InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from headrace_engine.service.convert.callers import check_owner, note_caller
from headrace_engine.service.convert.status import to_status
from headrace_engine.service.endless import ENDLESS, EndlessCalls
from headrace_engine.service.failures import CallFailed, call_stream, call_unary, closing, fail
from headrace_engine.service.trust import Trust


class FailureInterceptor(CallInterceptor):
    """Runs every call through `failures`, and aborts failed ones with their status.

    Args:
        endless: ends the calls that never end by themselves.
        trust: who may call, and who may name owners.
    """

    def __init__(self, endless: EndlessCalls, trust: Trust) -> None:
        super().__init__(_no_request)
        self._endless = endless
        self._trust = trust

    async def serve(self, method: Method, data: Any, context: Context) -> Any:
        """Serve one call."""
        try:
            note_caller(context, trusted=self._trusts(method, context))
            with self._endless.entered(method.name):
                return await self._serve(method, data, context)
        except CallFailed as failure:
            await abort(context, failure.status)
        except Unavailable as error:
            await abort(context, to_status(error))

    def _trusts(self, method: Method, context: Context) -> bool:
        try:
            return self._trust.check(method, context)
        except Unauthenticated as error:
            note_caller(context, trusted=False)
            fail(method.name, None, error)

    async def _serve(self, method: Method, data: Any, context: Context) -> Any:
        write = partial(self._endless.write, context) if method.name in ENDLESS else context.write
        try:
            request = await self.request(method, data, context)
            if not method.ours:
                return await method.run(request, context, write)  # May read a stream, and find that it is none.
            check_owner(getattr(request, "owner", ""))
        except (InvalidArgument, PermissionDenied) as error:
            fail(method.name, None, error)
        if not method.streams_out:
            return await call_unary(method.name, method.behaviour, request)
        # A generator as handler would only be closed by the garbage collector.
        async with closing(call_stream(method.name, method.behaviour, request)) as responses:
            async for response in responses:
                await write(response)
        return None


def _no_request(why: str) -> InvalidArgument:
    return InvalidArgument(why, violations=[FieldViolation("", why)])
