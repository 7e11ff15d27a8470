"""The front half's end of a core: starts it, talks to it, and detects its death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_engine.engine.cores.core_link import CoreLauncher, CoreLink
from headrace_engine.engine.cores.heartbeat import Heartbeat, Sleep
from headrace_engine.engine.cores.outputs import Outputs
from headrace_engine.errors import (
    BadModel,
    HeadraceError,
    Internal,
    Unavailable,
)
from headrace_engine.ipc.commands import AddSequence, AddSibling, EndSequence, LoadAdapter, Ping
from headrace_engine.ipc.messages import AdapterLoaded, CoreFailed, CoreMessage, CoreReady, Pong, StepBegun
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.model_types import ModelProgress


class CoreClient:
    """The cores of one model, one at a time. It owns the current core's link: no other object sends to it or closes it.

    Args:
        outputs: receives the results of steps.
        report: called with the progress of loading.
        ended: called once with the reason when a running core ends unexpectedly.
        ping_limit: seconds without progress after which a ready core is killed.
        sleep: waits between two checks for answers.
    """

    def __init__(
        self,
        launcher: CoreLauncher,
        outputs: Outputs,
        report: Callable[[ModelProgress], None],
        ended: Callable[[HeadraceError], None],
        ping_limit: float = 30.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._launcher = launcher
        self._outputs = outputs
        self._report = report
        self._ended = ended
        self._link: CoreLink | None = None
        self._ready: asyncio.Future[CoreReady] | None = None
        self._death: HeadraceError | None = None
        self._launched = False
        self._closing: asyncio.Task[None] | None = None
        self._adapters: dict[int, asyncio.Future[str]] = {}
        self._heartbeat = Heartbeat(ping_limit, self.send, self._silent, sleep)

    async def launch(self, plan: CorePlan) -> CoreReady:
        """Start a core and wait until it is warm. The previous core must be closed.

        Raises:
            HeadraceError: it could not start.
        """
        self._death = None
        self._launched = False
        self._outputs.history.new_core()
        self._ready = asyncio.get_running_loop().create_future()
        self._link = self._launcher(plan, self._receive, self._lost)
        ready = await self._ready
        if self._death is not None:  # between its answer and now
            raise self._death
        self._launched = True
        return ready

    async def load_adapter(self, adapter: AdapterPlan) -> None:
        """Have the core load an adapter, and wait until it has.

        Raises:
            BadModel: it could not.
            Unavailable: CORE_RESTARTING; the core ended meanwhile.
        """
        loaded = self._adapters[adapter.number] = asyncio.get_running_loop().create_future()
        self.send(LoadAdapter(adapter))
        if error := await loaded:
            raise BadModel(error)

    def send(self, message: AddSequence | AddSibling | EndSequence | LoadAdapter | Ping) -> None:
        """Send a message to the core, if there is one."""
        if self._link is not None:
            self._link.send(message)

    async def close(self) -> None:
        """End the core and wait until it is gone. Cancelling the caller does not cancel the work."""
        self._ready = None
        self._heartbeat.stop()
        self._lose_adapters()
        if self._link is not None:
            if not self._launched:
                self._link.kill()  # It reads no commands while it loads, and has no work to lose.
            self._closing = asyncio.create_task(self._link.close())
            self._link = None
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def _receive(self, message: CoreMessage) -> None:
        if isinstance(message, (StepBegun, StepOutput)):
            self._step(message)
        elif isinstance(message, Pong):
            self._heartbeat.answer(message.number, message.progress)
        elif isinstance(message, ModelProgress):
            self._progress(message)
        elif isinstance(message, AdapterLoaded):
            self._adapter_loaded(message)
        elif isinstance(message, CoreReady):
            self._become(message)
        elif isinstance(message, CoreFailed):
            self._end(message.error())

    def _step(self, message: StepBegun | StepOutput) -> None:
        if self._link is None:
            return  # The core is being closed: its sequences have ended or wait for the next core.
        if isinstance(message, StepBegun):
            self._outputs.begin_step(message)
        else:
            ended = [each.key for each in message.ended]
            for key in self._outputs.process(message):
                if key not in ended:
                    self.send(EndSequence(key))

    def _progress(self, progress: ModelProgress) -> None:
        if self._ready is not None and not self._ready.done():
            self._report(progress)

    def _become(self, ready: CoreReady) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(ready)
            self._heartbeat.start()

    def _adapter_loaded(self, message: AdapterLoaded) -> None:
        loaded = self._adapters.pop(message.number, None)
        if loaded is not None and not loaded.done():
            loaded.set_result(message.error)

    def _lose_adapters(self) -> None:
        text = "the core ended while it loaded the adapter: try again"
        for loaded in [each for each in self._adapters.values() if not each.done()]:
            loaded.set_exception(Unavailable(text, reason="CORE_RESTARTING", retry_after=1.0))
        self._adapters.clear()

    def _lost(self, reason: str) -> None:
        self._end(Internal(f"the core died: {reason}"))

    def _silent(self) -> None:
        became = "is gone" if self._link is None else self._link.kill()
        limit = f"{self._heartbeat.limit:g} s (--core-ping-limit)"
        advice = "where a single operation of a step takes that long, raise the limit or lower max_prefill_tokens"
        self._end(Internal(f"the core made no progress for {limit} and {became}; {advice}"))

    def _end(self, error: HeadraceError) -> None:
        """Handle the unexpected end of a core; the first reported reason counts."""
        self._heartbeat.stop()
        self._lose_adapters()
        starting, self._ready = self._ready, None
        if starting is None or starting.cancelled():
            return
        if self._launched:
            self._ended(error)
        elif starting.done():
            self._death = error
        else:
            starting.set_exception(error)
