"""One installed model: its life cycle, and the sequences that its core computes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.core_client import CoreClient
from headrace_engine.engine.core_link import CoreLauncher
from headrace_engine.engine.options import EngineOptions
from headrace_engine.engine.outputs import Outputs
from headrace_engine.engine.prepare import Prepared, prepare
from headrace_engine.engine.requests import Sequence
from headrace_engine.engine.runtime import core_plan, ready_config
from headrace_engine.engine.statistics import Clock
from headrace_engine.errors import FailedPrecondition, HeadraceError, Internal
from headrace_engine.messages import AddSequence, CoreReady, EndSequence
from headrace_engine.types import EffectiveConfig, FinishReason, ModelPhase, ModelProgress, ModelState, ModelView


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a model is given by its engine. `changed` is called whenever its view changes."""

    options: EngineOptions
    launcher: CoreLauncher
    clock: Clock
    changed: Callable[[Model], None]


class Model:
    """A name, a config, and a state. The verbs move the state; each joins itself where it is in progress already."""

    def __init__(self, config: RuntimeConfig, surroundings: Surroundings) -> None:
        self.config = config
        self.state = ModelState.INSTALLING
        self.wanted = ModelState.INITIAL
        self.failure: HeadraceError | None = None
        self.prepared: Prepared | None = None
        self.effective = EffectiveConfig(config)
        self.outputs = Outputs(surroundings.clock)
        self._around = surroundings
        self._core = CoreClient(surroundings.launcher, self.outputs, self._report, self._core_ended)
        self._progress: ModelProgress | None = None
        self._state_time = surroundings.clock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._keys = itertools.count(1)

    @property
    def name(self) -> str:
        """The name that all calls use."""
        return self.config.model_name

    @property
    def core_epoch(self) -> int:
        """Starts of its core, from 1; 0 before the first."""
        return self._core.epoch

    def view(self, *, with_effective: bool = True) -> ModelView:
        """The model as it stands."""
        return ModelView(
            model_name=self.name,
            engine=self._around.options.name,
            state=self.state,
            wanted_state=self.wanted,
            state_time=self._state_time,
            failure=self.failure,
            progress=self._progress,
            effective=self.effective if with_effective else None,
        )

    async def install(self, *, no_wait: bool) -> None:
        """To INITIAL: check config and files, read the tokenizer."""
        if self.state is ModelState.INSTALLING:
            await self._join("install", self._install, no_wait)

    async def start(self, *, no_wait: bool) -> None:
        """To RUNNING, from INSTALLING, INITIAL or STOPPED.

        Raises:
            FailedPrecondition: the state does not allow it.
            HeadraceError: why it failed.
        """
        if self.state is ModelState.RUNNING:
            return
        self._allow(
            "StartModel", ModelState.INSTALLING, ModelState.INITIAL, ModelState.STARTING, ModelState.STOPPED
        )
        self.wanted = ModelState.RUNNING
        await self._join("start", self._start, no_wait)

    async def stop(self, *, no_wait: bool) -> None:
        """To STOPPED, from STARTING or RUNNING; running requests may end until drain_limit.

        Raises:
            FailedPrecondition: the state does not allow it.
        """
        if self.state is ModelState.STOPPED:
            return
        self._allow("StopModel", ModelState.STARTING, ModelState.RUNNING, ModelState.STOPPING)
        self.wanted = ModelState.STOPPED
        await self._join("stop", self._stop, no_wait)

    def release(self) -> None:
        """To RELEASED, from any state but STARTING, RUNNING and STOPPING.

        Raises:
            FailedPrecondition: the state does not allow it.
        """
        self._allow(
            "ReleaseModel", ModelState.INSTALLING, ModelState.INITIAL, ModelState.STOPPED, ModelState.FAILED
        )
        self._cancel("start")
        self._cancel("install")
        self.prepared = None
        self.wanted = ModelState.RELEASED
        self._enter(ModelState.RELEASED)

    async def close(self) -> None:
        """End everything at once, for the end of the engine."""
        for verb in ("start", "install", "stop"):
            self._cancel(verb)
        self.outputs.finish_all(FinishReason.DRAINED)
        await self._core.close()

    def new_key(self) -> int:
        """A key for a sequence, never used before for this model."""
        return next(self._keys)

    def add(self, sequence: Sequence, message: AddSequence) -> None:
        """Give a sequence to the core."""
        self.outputs.add(sequence)
        self._core.send(message)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence that may still run; its end record is there afterwards."""
        if self.outputs.finish(sequence, reason):
            self._core.send(EndSequence(sequence.key))

    def end_all(self, reason: FinishReason) -> None:
        """End every sequence that still runs."""
        for key in self.outputs.finish_all(reason):
            self._core.send(EndSequence(key))

    def _allow(self, verb: str, *states: ModelState) -> None:
        if self.state in states:
            return
        because = f": {self.failure.message}" if self.failure else ""
        text = f"{verb}: model {self.name!r} is {self.state}{because}. The call is possible from {', '.join(states)}"
        raise FailedPrecondition(text, state=self.state, metadata={"model_name": self.name})

    async def _join(self, verb: str, work: Callable[[], Coroutine[Any, Any, None]], no_wait: bool) -> None:
        task = self._tasks.get(verb)
        if task is None or task.done():
            task = asyncio.create_task(work())
            task.add_done_callback(_retrieve)
            self._tasks[verb] = task
        if no_wait:
            return
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            text = f"model {self.name!r} is {self.state}: another call ended this one"
            raise FailedPrecondition(text, state=self.state) from None

    def _cancel(self, verb: str) -> None:
        task = self._tasks.pop(verb, None)
        if task is not None:
            task.cancel()

    async def _install(self) -> None:
        async with _Failing(self):
            self._report(ModelProgress(ModelPhase.READING))
            self.prepared = await asyncio.to_thread(prepare, self.config, self._around.options)
            self.effective = self.prepared.effective
            self._enter(ModelState.INITIAL)

    async def _start(self) -> None:
        if self.state is ModelState.INSTALLING:
            await self._join("install", self._install, no_wait=False)
        async with _Failing(self):
            self._enter(ModelState.STARTING)
            assert self.prepared is not None, "a model that starts was installed"
            files = self.prepared.files
            ready = await self._core.launch(core_plan(self.config, str(files.path), files.format, self._around.options))
            self._become_ready(ready)
            self._enter(ModelState.RUNNING)

    def _become_ready(self, ready: CoreReady) -> None:
        config = ready_config(self.config, ready)
        self.effective = replace(
            self.effective,
            config=config,
            devices=ready.devices,
            weight_bytes=ready.weight_bytes,
            workspace_bytes=ready.workspace_bytes,
            kv_bytes=ready.kv_bytes,
            kv_tokens=ready.num_blocks * (config.block_size or 0),
        )

    async def _stop(self) -> None:
        self._cancel("start")
        async with _Failing(self):
            self._enter(ModelState.STOPPING, ModelProgress(ModelPhase.DRAINING))
            try:
                await asyncio.wait_for(self.outputs.wait_idle(), self.effective.config.drain_limit)
            except TimeoutError:
                self.end_all(FinishReason.DRAINED)
            self._report(ModelProgress(ModelPhase.FREEING))
            await self._core.close()
            assert self.prepared is not None, "a model that stops was installed"
            self.effective = self.prepared.effective
            self._enter(ModelState.STOPPED)

    def _core_ended(self, error: HeadraceError) -> None:
        self.outputs.finish_all(FinishReason.ERROR, error.message)
        if self.state is ModelState.RUNNING:
            self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """To FAILED: nothing is held but the name."""
        self.failure = error
        self.prepared = None
        self._tasks["close"] = asyncio.create_task(self._core.close())
        self._enter(ModelState.FAILED)

    def _enter(self, state: ModelState, progress: ModelProgress | None = None) -> None:
        self.state = state
        self._state_time = self._around.clock()
        self._report(progress)

    def _report(self, progress: ModelProgress | None) -> None:
        self._progress = progress
        self._around.changed(self)


class _Failing:
    """Inside, an error puts the model into FAILED before it goes on to the caller."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HeadraceError):
            self._model.fail(error)
        elif isinstance(error, Exception):
            self._model.fail(Internal(f"{type(error).__name__}: {error}"))


def _retrieve(task: asyncio.Task[None]) -> None:
    """Nobody may be waiting for a verb that fails; the failure is in the model's state."""
    if not task.cancelled():
        task.exception()
