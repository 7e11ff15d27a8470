"""The program headrace-engine with an engine that hangs in the ways that its models' names select.

`python -m support.scripted.hanging_program ARGUMENTS`; it logs "hanging" before it does, and may
take a second beyond its limit.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import uvloop
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.engine import Engine
from headrace_engine.model_types import ModelView
from headrace_engine.service.program import life
from headrace_engine.service.program.arguments import Arguments, parse_arguments
from headrace_engine.service.program.life import Service
from headrace_proto.server.logs import configure_service, logger

from support.scripted.engine import ScriptedEngine


def hang() -> None:
    """Hang forever, like a read of a file system that is gone."""
    threading.Event().wait()


def hold_the_interpreter() -> None:
    """Hang forever, and stop all other threads."""
    ctypes.PyDLL(None).pause()


def stopped_child() -> int:
    """Start a process that cannot even end, like a core whose device hangs; return its id."""
    child = subprocess.Popen(["sleep", "600"], stderr=subprocess.DEVNULL)
    child.send_signal(signal.SIGSTOP)
    return child.pid


class Hanging(ScriptedEngine):
    """A model "thread" starts an endless thread, "loop" blocks the event loop, others block the engine's close."""

    def __init__(self) -> None:
        super().__init__()
        self._closings: dict[str, Callable[[], None]] = {"closing": hang, "interpreter": hold_the_interpreter}
        self._closing: Callable[[], None] | None = None

    async def install_model(self, config: RuntimeConfig, *, no_wait: bool = False) -> ModelView:
        logger("headrace_engine.hanging").info("hanging", child=stopped_child())
        self._closing = self._closings.get(config.model_name)
        if config.model_name == "thread":
            threading.Thread(target=hang).start()
        elif config.model_name == "loop":
            hang()
        elif config.model_name == "waiting":
            await asyncio.Event().wait()
        return await super().install_model(config, no_wait=no_wait)

    async def start(self, declared: Any = ()) -> list[Any]:
        if any(config.model_name == "checking" for config in declared):
            logger("headrace_engine.hanging").info("hanging")
            await asyncio.Event().wait()
        return await super().start(declared)

    async def close(self) -> None:
        if self._closing is not None:
            self._closing()
        await super().close()


async def _serve(arguments: Arguments) -> int:
    engine: Any = Hanging()
    return await Service(arguments, cast(Engine, engine)).run()


if __name__ == "__main__":
    life.GRACE = 1.0
    given = parse_arguments()
    configure_service("headrace_engine", json=given.log_json, level=given.log_level, engine=given.engine.name)
    sys.exit(uvloop.run(_serve(given)))
