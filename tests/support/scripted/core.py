"""A core scripted by the test: it records commands, and sends messages on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.ipc.commands import AddSequence, AddSibling, CoreCommand, EndSequence, Ping
from headrace_engine.ipc.messages import CoreFailed, CoreMessage, CoreReady, Pong, StepBegun
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.step_output import Ended, Scheduled, StepOutput
from headrace_engine.model_types import ModelPhase, ModelProgress
from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat

from support.clocks.clock import settle

READY = CoreReady(("CPU test",), ComputeDtype.FLOAT32, ComputeUnit.CPU, 2, 64, 128, 1000, 200, 3000)


class ScriptedCore:
    """One launched core, and the link to it. Satisfies the contract of `CoreLink`.

    Attributes:
        commanded: set when it got a command.
        killed: it was ordered to end at once.
        answers: it answers pings, in the next turn of the event loop.
    """

    def __init__(
        self, plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None], *, lingers: bool
    ) -> None:
        self.plan = plan
        self.commands: list[CoreCommand] = []
        self.commanded = asyncio.Event()
        self.killed = False
        self.answers = True
        self.closing = False
        self.closed = False
        self._receive = receive
        self._lost = lost
        self._gone = False
        self._begun: tuple[int, ...] = ()
        self._may_end = asyncio.Event()
        if not lingers:
            self._may_end.set()

    # The link.

    def send(self, message: CoreCommand) -> None:
        if self._gone or self.closing:
            return
        if isinstance(message, Ping):
            if self.answers:
                asyncio.get_running_loop().call_soon(self._receive, Pong(message.number))
            return
        self.commands.append(message)
        self.commanded.set()

    def kill(self) -> None:
        self.killed = True
        self._gone = True
        asyncio.get_running_loop().call_soon(self.die)

    async def close(self) -> None:
        assert not self.closing, "a link is closed once"
        self.closing = True
        await self._may_end.wait()
        self.closed = True

    # Driven by the test.

    @property
    def added(self) -> list[AddSequence]:
        found: list[AddSequence] = []
        for command in self.commands:
            if isinstance(command, AddSequence):
                found.append(command)
            elif isinstance(command, AddSibling):
                found.append(command.whole(found[-1]))
        return found

    @property
    def ended(self) -> list[int]:
        return [command.key for command in self.commands if isinstance(command, EndSequence)]

    def say(self, message: CoreMessage) -> None:
        assert not self.closed, "nothing is received after a close"
        self._receive(message)

    def progress(self, done: int, total: int | None = None) -> None:
        self.say(ModelProgress(ModelPhase.LOADING, done, total))

    def ready(self, message: CoreReady = READY) -> None:
        self.say(message)

    def fail(self, reason: str, message: str, field: str = "") -> None:
        """Report a failure, then exit."""
        self.say(CoreFailed(reason, message, field))
        self.die("exit status 1")

    def die(self, reason: str = "killed by signal 9") -> None:
        self._gone = True
        if not self.closing:
            self._lost(reason)

    def end_close(self) -> None:
        """Let a close that is in progress return."""
        self._may_end.set()

    def begin(self, *keys: int) -> None:
        """Begin a step for these keys, if it is another step than the last one."""
        if keys and keys != self._begun:
            self._begun = keys
            self.say(StepBegun(list(keys)))

    def step(
        self,
        tokens: Mapping[int, int] | Sequence[tuple[int, int]] = (),
        *,
        scheduled: Mapping[int, int] | None = None,
        ended: Mapping[int, FinishReason] | None = None,
        stat: CoreStat | None = None,
        **more: Any,
    ) -> None:
        """Run a whole step: tokens by key, newly scheduled keys with their cached tokens, and ended keys."""
        pairs = list(tokens.items()) if isinstance(tokens, Mapping) else list(tokens)
        self.begin(*dict.fromkeys([*(key for key, _ in pairs), *(scheduled or {})]))
        self.say(
            StepOutput(
                keys=[key for key, _ in pairs],
                token_ids=[token_id for _, token_id in pairs],
                scheduled=[Scheduled(key, cached) for key, cached in (scheduled or {}).items()],
                ended=[Ended(key, reason) for key, reason in (ended or {}).items()],
                stat=stat or CoreStat(),
                batch_size=len(pairs),
                **more,
            )
        )


class ScriptedLauncher:
    """Launches scripted cores and records them. A `CoreLauncher`.

    Attributes:
        cores: all launched cores, oldest first.
        ready_at_once: new cores are ready in the next turn of the event loop; None: when the test says so.
        lingers: closing a core lasts until the test ends it.
        error: raised instead of launching.
    """

    def __init__(self) -> None:
        self.cores: list[ScriptedCore] = []
        self.ready_at_once: CoreReady | None = READY
        self.lingers = False
        self.error: Exception | None = None

    @property
    def core(self) -> ScriptedCore:
        """The newest core."""
        return self.cores[-1]

    def __call__(
        self, plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None]
    ) -> ScriptedCore:
        if self.error is not None:
            raise self.error
        core = ScriptedCore(plan, receive, lost, lingers=self.lingers)
        self.cores.append(core)
        if self.ready_at_once is not None:
            asyncio.get_running_loop().call_soon(core.ready, self.ready_at_once)
        return core

    async def fail_restart(self) -> ScriptedCore:
        """Let the newest core die and the next one not start, so that its model is FAILED. Return the last core."""
        dead, ready_at_once = self.core, self.ready_at_once
        self.ready_at_once = None
        dead.die()
        dead.end_close()
        await settle()
        self.core.fail("OUT_OF_MEMORY", "lower one of them")
        await settle()
        self.ready_at_once = ready_at_once
        return self.core
