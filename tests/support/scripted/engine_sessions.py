"""The session stream of a scripted engine: real logs, read through real windows."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_proto.v1 import session_pb2 as wire

from support.scripted.engine_answers import RUNNING, Known
from support.scripted.session_engine import EngineSide, Log


class SessionAnswers(Known):
    """RequestService/Session. `logs` are by the last part of their handle; a `ping_timeout` of 0 is not sent."""

    def __init__(self, **models: Any) -> None:
        super().__init__(**models)
        self.logs: dict[str, Log] = {}
        self.sessions: list[EngineSide] = []
        self.broken: list[BaseException] = []
        self.ping_interval = 10.0
        self.ping_timeout = 0.0
        self.answers_pings = True
        self.owner = ""

    @property
    def side(self) -> EngineSide:
        """The newest session."""
        return self.sessions[-1]

    def log(self, engine: str = "e1", **more: Any) -> tuple[str, Log]:
        """Add a sequence; `engine` is the gateway's name for this engine."""
        name = f"{len(self.logs):032x}"
        self.logs[name] = Log(**more)
        return f"{engine}/{self.instance_id}/{name}", self.logs[name]

    def produce(self, log: Log, *tokens: int, end: bool = False) -> None:
        """Add tokens and perhaps the end, and notify all sessions."""
        log.tokens += tokens
        log.ended = end
        self.note()

    def send_load(self, model_name: str = "smol", **figures: Any) -> None:
        """Report a model's load to all sessions that requested it."""
        for side in self.sessions:
            if side.open:
                side.loads.append(wire.ModelLoad(model_name=model_name, **{"state": RUNNING, **figures}))
        self.note()

    def send_usage(self, owner: str, **figures: int) -> None:
        """Report what an owner uses to all sessions that requested it."""
        for side in self.sessions:
            if side.open:
                side.usage.append(wire.OwnerUsage(owner=owner, **figures))
        self.note()

    def take_leave(self) -> None:
        """Send `closing` to all open sessions."""
        for side in self.sessions:
            side.closing = True
        self.note()

    def end_sessions(self) -> None:
        """End all open streams; the engine itself stays."""
        for side in self.sessions:
            side.over = True
        self.note()

    async def Session(self, requests: Any, context: Any) -> None:
        side = EngineSide(self._find_log, pongs=self.answers_pings, owner=self.owner)
        self.sessions.append(side)
        hearing = asyncio.create_task(self._hear(side, requests))
        opened = wire.SessionOpened(server="self", instance_id=self.instance_id)
        opened.ping_interval.FromMilliseconds(int(self.ping_interval * 1000))
        opened.ping_timeout.FromMilliseconds(int(self.ping_timeout * 1000))
        try:
            await context.write(wire.SessionResponse(opened=opened))
            while not hearing.done() and not side.over:
                changed = self.changed
                if (message := side.say()) is not None:
                    await context.write(message)
                else:
                    await changed.wait()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _hear(self, side: EngineSide, requests: Any) -> None:
        try:
            async for request in requests:
                side.hear(request)
                self.note()
        except AssertionError as problem:
            self.broken.append(problem)
            raise
        finally:
            side.open = False
            self.note()

    def _find_log(self, handle: str, index: int) -> Log | str:
        _, instance, name = handle.split("/")
        if instance != self.instance_id:
            return "ENGINE_LOST"
        return self.logs.get(name, "UNKNOWN_REQUEST") if index == 0 else "UNKNOWN_REQUEST"
