"""One installed model: its life cycle, and the sequences that its core computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace_proto.pure.faults import is_fault

from headrace_engine.commands import AddSequence, EndSequence
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.runtime import core_plan, ready_effective
from headrace_engine.engine.models.context import Surroundings
from headrace_engine.engine.models.core_client import CoreClient
from headrace_engine.engine.models.outputs import Outputs
from headrace_engine.engine.models.prepare import Prepared, prepare
from headrace_engine.engine.models.recovery import Recovery
from headrace_engine.engine.models.state_errors import given_up, wrong_state
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import StepHistory
from headrace_engine.engine.work.joined_calls import Verbs
from headrace_engine.errors import HeadraceError, Internal, in_words, quoted
from headrace_engine.model_types import EffectiveConfig, ModelPhase, ModelProgress, ModelState, ModelView
from headrace_engine.result_types import FinishReason

_ON_THE_WAY = (ModelState.INSTALLING, ModelState.INITIAL, ModelState.STARTING)


class Model:
    """A name, a config, and a state. The verbs move the state; each joins itself where it is in progress already."""

    def __init__(self, config: RuntimeConfig, surroundings: Surroundings, history: StepHistory) -> None:
        self.config = config
        self.state = ModelState.INSTALLING
        self.wanted = ModelState.INITIAL
        self.failure: HeadraceError | None = None
        self.prepared: Prepared | None = None
        self.effective = EffectiveConfig(config)
        self.outputs = Outputs(surroundings.clock, history)
        self._around = surroundings
        limit = surroundings.options.core_ping_limit
        self._core = CoreClient(
            surroundings.launcher, self.outputs, self._report, lambda loss: self._recovery.begin(loss), limit
        )
        calls = self._launch, self._core_changed, self._core_given_up
        self._recovery = Recovery(self._core, self.outputs, surroundings.clock, *calls)
        self._progress: ModelProgress | None = None
        self._state_time = surroundings.clock()
        self._verbs = Verbs(lambda: given_up(self.name, self.state))

    @property
    def name(self) -> str:
        """The name that all calls use."""
        return self.config.model_name

    @property
    def by_operator(self) -> bool:
        """Its path is the operator's, and need not lie in a model root."""
        return self._around.options.model_roots is None

    @property
    def core_epoch(self) -> int:
        """Starts of a core under its name, from 1; 0 before the first."""
        return self.outputs.history.cores

    @property
    def serving(self) -> bool:
        """It takes requests now: it is RUNNING, and its core is at work."""
        return self.state is ModelState.RUNNING and self._recovery.loss is None

    @property
    def coming(self) -> bool:
        """It is on its way to RUNNING, by a call, by the command line, or because it was RUNNING before a restart."""
        return self.wanted is ModelState.RUNNING and self.state in _ON_THE_WAY

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
            logits_processors=self.effective.logits_processors if self.effective is not None else (),
            core_epoch=self.core_epoch,
            core_loss=self._recovery.loss,
        )

    async def install(self, *, no_wait: bool) -> None:
        """To INITIAL: check config and files, read the tokenizer.

        Raises:
            HeadraceError: why it failed.
        """
        if self.state is ModelState.INSTALLING:
            await self._do("install", self._install, no_wait)

    async def start(self, *, no_wait: bool) -> None:
        """To RUNNING, from INSTALLING, INITIAL or STOPPED.

        Raises:
            FailedPrecondition: the state does not allow it.
            HeadraceError: why it failed.
        """
        if self.state is ModelState.RUNNING:
            return
        self._allow("StartModel", ModelState.INSTALLING, ModelState.INITIAL, ModelState.STARTING, ModelState.STOPPED)
        self.wanted = ModelState.RUNNING
        if self.state in (ModelState.INITIAL, ModelState.STOPPED):
            self._enter(ModelState.STARTING)
        else:
            self._report(self._progress)
        await self._do("start", self._start, no_wait)

    async def stop(self, *, no_wait: bool) -> None:
        """To STOPPED, from STARTING or RUNNING; running requests may end until drain_limit.

        Raises:
            FailedPrecondition: the state does not allow it.
        """
        if self.state is ModelState.STOPPED:
            return
        self._allow("StopModel", ModelState.STARTING, ModelState.RUNNING, ModelState.STOPPING)
        self.wanted = ModelState.STOPPED
        if self.state is not ModelState.STOPPING:
            self._verbs.cancel("start")
            self._enter(ModelState.STOPPING, ModelProgress(ModelPhase.DRAINING))
        await self._do("stop", self._stop, no_wait)

    def release(self) -> None:
        """To RELEASED, from any state but STARTING, RUNNING and STOPPING.

        Raises:
            FailedPrecondition: the state does not allow it.
        """
        self._allow("ReleaseModel", ModelState.INSTALLING, ModelState.INITIAL, ModelState.STOPPED, ModelState.FAILED)
        self._verbs.cancel("start", "install")
        self.prepared = None
        self.failure = None  # This one succeeded.
        self.wanted = ModelState.RELEASED
        self._enter(ModelState.RELEASED)

    async def close(self) -> None:
        """End everything at once, and return when the core is gone; for the end of the engine or of the model."""
        self._verbs.cancel("start", "install", "stop")
        self._recovery.give_up()
        self.outputs.finish_all(FinishReason.DRAINED)
        await self._core.close()

    def add(self, sequence: Sequence, message: AddSequence) -> None:
        """Give a sequence to the core."""
        self.outputs.add(sequence, message)
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
        if self.state not in states:
            raise wrong_state(verb, self.name, self.state, self.failure, states)

    async def _do(self, verb: str, work: Callable[[], Coroutine[Any, Any, None]], no_wait: bool) -> None:
        if not self._verbs.busy(verb):
            self._verbs.begin(verb, self._attempt(work))
        if not no_wait:
            await self._verbs.join(verb)

    async def _attempt(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work of a verb; where it fails the model is FAILED before the caller is told."""
        try:
            await work()
        except HeadraceError as error:
            self.fail(error)
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            failure = Internal(f"model {quoted(self.name)}: {in_words(error)}")
            self.fail(failure)
            raise failure from error

    async def _install(self) -> None:
        self._report(ModelProgress(ModelPhase.READING))
        config, options, pools = self.config, self._around.options, self._around.pools
        self.prepared = await pools.on_files(config.model_path, prepare, config, options, pools)
        self.effective = self.prepared.effective
        self._enter(ModelState.INITIAL)

    async def _start(self) -> None:
        if self.state is ModelState.INSTALLING:
            await self._verbs.join("install")
            self._enter(ModelState.STARTING)
        await self._launch()
        self._enter(ModelState.RUNNING)

    async def _launch(self) -> None:
        """Start a core, and return when it is warm."""
        assert self.prepared is not None, "a model that starts was installed"
        plan = core_plan(self.config, self.prepared.files, self._around.options)
        self.effective = ready_effective(self.effective, plan, await self._core.launch(plan))

    async def _stop(self) -> None:
        try:
            await asyncio.wait_for(self.outputs.wait_idle(), self.effective.config.drain_limit)
        except TimeoutError:
            self.end_all(FinishReason.DRAINED)
        self._recovery.give_up()
        self._report(ModelProgress(ModelPhase.FREEING))
        await self._core.close()
        assert self.prepared is not None, "a model that stops was installed"
        self.effective = self.prepared.effective
        self._enter(ModelState.STOPPED)

    def _core_changed(self) -> None:
        """A core was lost, or the next one is at work. Until it is, there is a progress, so that callers can tell."""
        if self.state is ModelState.STOPPING:
            self._report(ModelProgress(ModelPhase.DRAINING))
        else:
            self._report(None if self._recovery.loss is None else ModelProgress(ModelPhase.LOADING))

    def _core_given_up(self, error: HeadraceError) -> None:
        """There will be no other core. A stop in progress goes on, now that nothing runs."""
        self.outputs.finish_all(FinishReason.ERROR, error.message)
        if self.state is ModelState.RUNNING:
            self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """To FAILED: nothing is held but the name."""
        if self.state is ModelState.FAILED:
            return
        self.failure = error
        self.prepared = None
        self._recovery.give_up()
        self._enter(ModelState.FAILED)
        self._verbs.begin("close", self._core.close())

    def _enter(self, state: ModelState, progress: ModelProgress | None = None) -> None:
        self.state = state
        self._state_time = self._around.clock()
        self._report(progress)

    def _report(self, progress: ModelProgress | None) -> None:
        self._progress = progress
        self._around.changed(self)
