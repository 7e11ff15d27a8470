"""The program headrace-engine with a scripted engine: `python -m support.scripted.program ARGUMENTS`.

A reader gets one token, and the end once the engine drains; for the handle "stuck" the end never comes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

import uvloop
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.engine import Engine
from headrace_engine.errors import AlreadyExists, BadModel, OutOfMemory
from headrace_engine.model_types import ModelState, ModelView
from headrace_engine.result_types import FinishReason, ReadResult
from headrace_engine.service.program.arguments import Arguments, parse_arguments
from headrace_engine.service.program.life import Service
from headrace_proto.server.logs import configure_service

from support.scripted.engine import ScriptedEngine, end, tokens


class Program(ScriptedEngine):
    """Runs "smol", and refuses to install or start some others."""

    def __init__(self) -> None:
        super().__init__()
        self._drains = asyncio.Event()

    async def install_model(self, config: RuntimeConfig, *, no_wait: bool = False) -> ModelView:
        if config.model_name == "other":
            raise AlreadyExists('"other" is installed with another config')
        if config.model_name == "broken":
            raise BadModel("no file there")
        return await super().install_model(config, no_wait=no_wait)

    async def start_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        if model_name == "large":
            raise OutOfMemory("lower max_length")
        if not no_wait:
            self.set_state(ModelState.RUNNING, model_name)
        return self.get_model(model_name)

    async def drain(self, limit: float) -> None:
        self._drains.set()
        await super().drain(limit)

    def read(self, handle: str, index: int, from_position: int, owner: str) -> AsyncIterator[ReadResult]:
        self.live_requests += 1
        self.script = [tokens(0, 5), asyncio.Event() if handle == "stuck" else self._drains]
        self.script += [tokens(1, 6), end(2, FinishReason.DRAINED)]
        return super().read(handle, index, from_position, owner)


async def _serve(arguments: Arguments) -> int:
    engine: Any = Program()
    return await Service(arguments, cast(Engine, engine)).run()


if __name__ == "__main__":
    given = parse_arguments()
    configure_service("headrace_engine", json=given.log_json, level=given.log_level, engine=given.engine.name)
    sys.exit(uvloop.run(_serve(given)))
