"""A rig for tests of the engine: an installed model, a scripted core, and requests to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_engine.chat_types import Chat
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.engine import Engine
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.model_types import ModelState
from headrace_engine.request_types import AcceptedRequest, StartRequest
from headrace_engine.result_types import Elements, ReadResult, SequenceView

from support.clocks.clock import FakeClock
from support.scripted.core import ScriptedCore, ScriptedLauncher

NAME = "smol"


class Rig:
    """An engine whose clock stands still and whose cores are scripted."""

    def __init__(self, model_path: Path) -> None:
        self.model_path = model_path
        self.clock = FakeClock()
        self.launcher = ScriptedLauncher()
        self.engine = self.new_engine()

    def new_engine(self, **options: Any) -> Engine:
        """Create another engine with the same launcher and clock; it becomes the rig's."""
        self.engine = Engine(EngineOptions(**{"name": "e1", **options}), self.launcher, self.clock)
        return self.engine

    @property
    def core(self) -> ScriptedCore:
        """The core launched last."""
        return self.launcher.core

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and run due leases and deadlines."""
        self.clock.advance(seconds)
        self.engine._registry.leases.sweep()
        self.engine._registry.deadlines.sweep()

    def config(self, name: str = NAME, **changes: Any) -> RuntimeConfig:
        return RuntimeConfig(**{"model_name": name, "model_path": str(self.model_path), **changes})

    @property
    def state(self) -> ModelState:
        return self.engine.get_model(NAME).state

    async def install(self, name: str = NAME, **changes: Any) -> None:
        await self.engine.install_model(self.config(name, **changes))

    async def run(self, name: str = NAME, **changes: Any) -> ScriptedCore:
        """Install and start a model; return its core."""
        await self.install(name, **changes)
        await self.engine.start_model(name)
        return self.core

    async def start(
        self, prompt: str | tuple[int, ...] | Chat = (5, 6, 7), *, config: dict[str, Any] | None = None, **fields: Any
    ) -> AcceptedRequest:
        """Start a request; fields are those of StartRequest, config those of its generation config."""
        return await self.engine.start_request(self.request(prompt, config=config, **fields))

    def request(
        self, prompt: str | tuple[int, ...] | Chat = (5, 6, 7), *, config: dict[str, Any] | None = None, **fields: Any
    ) -> StartRequest:
        return StartRequest(
            **{"model_name": NAME, "prompt": prompt, "config": GenerationConfig(**config or {}), **fields}
        )

    def added(self) -> AddSequence:
        """Return the sequence added to the core last."""
        return self.core.added[-1]

    async def sequence(self, handle: str, owner: str = "") -> SequenceView:
        """Return the only sequence of a request, as GetRequest reports it."""
        view, _ = await self.engine.get_request(handle=handle, owner=owner)
        return view.sequences[0]

    async def unread(self, handle: str, position: int = 0) -> Elements | None:
        """Return what GetRequest finds unread at a position, without waiting."""
        return (await self.engine.get_request(handle=handle, from_position=position))[1]

    async def read_all(self, handle: str, position: int = 0) -> list[ReadResult]:
        """Read everything from a position to the end, by GeneratedElements."""
        return [result async for result in self.engine.read(handle, 0, position, "")]
