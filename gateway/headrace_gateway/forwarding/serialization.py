"""SerializeModel over several engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from headrace_proto.server.interceptor import Context
from headrace_proto.v1 import model_service_pb2 as wire

from headrace_gateway.engines.engine import Engine
from headrace_gateway.forwarding.fan_out import Outcome, answers, ask_each
from headrace_gateway.forwarding.forward import Forward


class Serialization:
    """One client's call: merges the engines' streams. It fails only if it failed on every engine.

    Args:
        forward: calls the engines.
        request: what to write; addresses no engine.
        context: call of the client, to which steps are written.
    """

    def __init__(self, forward: Forward, request: wire.SerializeModelRequest, context: Context) -> None:
        self._forward = forward
        self._request = request
        self._context = context
        self._writing = asyncio.Lock()

    async def run(self, engines: Sequence[Engine]) -> None:
        """Write the steps of all engines, and then the failures of some.

        Raises:
            CallError: it failed on all; the failure of the first.
        """
        outcomes = await ask_each(engines, self._follow)
        answers(outcomes)
        for outcome in outcomes:
            await self._report(outcome)

    async def _follow(self, engine: Engine) -> bool:
        async with aclosing(self._forward.stream(engine, engine.models.SerializeModel, self._request)) as steps:
            async for step in steps:
                step.engine = engine.name
                await self._write(step)
        return True

    async def _report(self, outcome: Outcome[bool]) -> None:
        if outcome.error is not None:
            await self._write(wire.SerializeModelResponse(engine=outcome.engine.name, failure=outcome.error.status))

    async def _write(self, step: wire.SerializeModelResponse) -> None:
        async with self._writing:
            await self._context.write(step)
