"""One installed model: its state, and the verbs that change it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from headrace_proto.pure.faults import is_fault

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.runtime import core_plan, ready_effective
from headrace_engine.engine.cores.model_core import ModelCore
from headrace_engine.engine.models.adapter_verbs import AdapterVerbs
from headrace_engine.engine.models.adapters import Adapters, KeptAdapters
from headrace_engine.engine.models.context import ModelContext
from headrace_engine.engine.models.prepare import CallersAdapters, Prepared, prepare
from headrace_engine.engine.models.state_errors import BEFORE_RUNNING, given_up, wrong_state
from headrace_engine.engine.results.statistics import StepHistory
from headrace_engine.engine.work.joined_calls import JoinedCalls
from headrace_engine.errors import HeadraceError, Internal, in_words, quoted
from headrace_engine.model_types import EffectiveConfig, ModelPhase, ModelProgress, ModelState, ModelView
from headrace_engine.result_types import FinishReason


class Model:
    """A name, a config, and a state, which the verbs change; a verb that is in progress already is joined.

    Args:
        kept: adapters instead of those of the config, as before a restart.

    Attributes:
        core: what it computes with.
        outputs: the sequences of its core, and their results.
        kept_adapters: what is kept of its adapters over a restart; None: they are those of the config.
    """

    def __init__(
        self, config: RuntimeConfig, context: ModelContext, history: StepHistory, kept: KeptAdapters | None = None
    ) -> None:
        self.config = config
        self.state = ModelState.INSTALLING
        self.wanted = ModelState.INITIAL
        self.failure: HeadraceError | None = None
        self.prepared: Prepared | None = None
        self.effective = EffectiveConfig(config)
        self.adapters = Adapters(config.model_name)
        self.kept_adapters = kept
        self.adapter_verbs = AdapterVerbs(self, context.pools, context.options.name)
        self._context = context
        calls = self._report, self._launch, self._core_changed, self._core_given_up
        limit = context.options.core_ping_limit
        self.core = ModelCore(context.launcher, context.clock, history, limit, *calls)
        self.outputs = self.core.outputs
        self._progress: ModelProgress | None = None
        self._state_time = context.clock()
        self._verbs = JoinedCalls(lambda: given_up(self.name, self.state))

    @property
    def name(self) -> str:
        """Name of the model, which all calls use."""
        return self.config.model_name

    @property
    def by_operator(self) -> bool:
        """True if the operator chose its path, which need not lie in a model root."""
        return self._context.options.model_roots is None

    @property
    def serving(self) -> bool:
        """True if it accepts requests: it is RUNNING, and its core is alive."""
        return self.state is ModelState.RUNNING and self.core.loss is None

    @property
    def coming(self) -> bool:
        """True if it is on the way to RUNNING: by a call, the command line, or a restore after a restart."""
        return self.wanted is ModelState.RUNNING and self.state in BEFORE_RUNNING

    def view(self, *, with_effective: bool = True) -> ModelView:
        """Return the current state of the model."""
        return ModelView(
            model_name=self.name,
            engine=self._context.options.name,
            state=self.state,
            wanted_state=self.wanted,
            state_time=self._state_time,
            failure=self.failure,
            progress=self._progress,
            effective=self.effective if with_effective else None,
            logits_processors=self.effective.logits_processors if self.effective is not None else (),
            core_epoch=self.core.epoch,
            core_loss=self.core.loss,
        )

    async def install(self, *, no_wait: bool) -> None:
        """Go to INITIAL: check config and files, read the tokenizer.

        Raises:
            HeadraceError: why it failed.
        """
        if self.state is ModelState.INSTALLING:
            await self._do("install", self._install, no_wait)

    async def start(self, *, no_wait: bool) -> None:
        """Go to RUNNING, from INSTALLING, INITIAL or STOPPED.

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
        """Go to STOPPED, from STARTING or RUNNING; running requests have drain_limit seconds to end.

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
        """Go to RELEASED, from any state except STARTING, RUNNING and STOPPING.

        Raises:
            FailedPrecondition: the state does not allow it.
        """
        self._allow("ReleaseModel", ModelState.INSTALLING, ModelState.INITIAL, ModelState.STOPPED, ModelState.FAILED)
        self._verbs.cancel("start", "install")
        self._forget_files()
        self.failure = None  # The release itself succeeded.
        self.wanted = ModelState.RELEASED
        self._enter(ModelState.RELEASED)

    async def close(self) -> None:
        """End all sequences, side processes and the core at once, and wait until the core is gone."""
        self._verbs.cancel("start", "install", "stop")
        self._forget_files()
        self.outputs.finish_all(FinishReason.DRAINED)
        await self.core.close()

    def adapters_changed(self) -> None:
        """Keep the adapters over restarts."""
        self.kept_adapters = self.adapters.kept(self.config)
        self._context.changed(self)

    def _allow(self, verb: str, *states: ModelState) -> None:
        if self.state not in states:
            raise wrong_state(verb, self.name, self.state, self.failure, states)

    async def _do(self, verb: str, work: Callable[[], Coroutine[Any, Any, None]], no_wait: bool) -> None:
        if not self._verbs.busy(verb):
            self._verbs.begin(verb, self._attempt(work))
        if not no_wait:
            await self._verbs.join(verb)

    async def _attempt(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work of a verb; on failure the model is FAILED before the error reaches the caller."""
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
        config, options, pools = self.config, self._context.options, self._context.pools
        kept = self.kept_adapters
        instead = None if kept is None else CallersAdapters(kept, self._context.callers)
        self.prepared = await pools.on_files(config.model_path, prepare, config, options, pools, instead)
        self.effective = self.prepared.effective
        most, rank = self.effective.config.lora_max_num or 0, self.effective.config.lora_max_rank or 0
        self.adapters = Adapters(self.name, self.prepared.adapters, most, rank)
        self._enter(ModelState.INITIAL)

    async def _start(self) -> None:
        if self.state is ModelState.INSTALLING:
            await self._verbs.join("install")
            self._enter(ModelState.STARTING)
        await self._launch()
        self._enter(ModelState.RUNNING)

    async def _launch(self) -> None:
        """Start a core and wait until it is warm."""
        assert self.prepared is not None, "a model that starts was installed"
        draft = None if self.prepared.draft is None else self.prepared.draft.plan
        plan = self.adapters.planned(core_plan(self.config, self.prepared.files, self._context.options, draft))
        ready = await self.core.launch(plan)
        self.effective = ready_effective(self.effective, plan, ready)
        self.adapter_verbs.lose(ready.lost_adapters)

    async def _stop(self) -> None:
        await self.core.drain(self.effective.config.drain_limit)
        self.core.give_up()
        self._report(ModelProgress(ModelPhase.FREEING))
        await self.core.close()
        assert self.prepared is not None, "a model that stops was installed"
        self.effective = self.prepared.effective
        self._enter(ModelState.STOPPED)

    def _core_changed(self) -> None:
        """Publish that a core was lost or replaced. While there is none, the view has a progress."""
        if self.state is ModelState.STOPPING:
            self._report(ModelProgress(ModelPhase.DRAINING))
        else:
            self._report(None if self.core.loss is None else ModelProgress(ModelPhase.LOADING))

    def _core_given_up(self, error: HeadraceError) -> None:
        """Fail: no other core will be started. A stop in progress continues."""
        handed_over = self._context.options.hand_over_failed
        self.outputs.finish_all(FinishReason.ENGINE_LOST if handed_over else FinishReason.ERROR, error.message)
        if self.state is ModelState.RUNNING:
            self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """Go to FAILED and free everything except the name."""
        if self.state is ModelState.FAILED:
            return
        self.failure = error
        self._forget_files()
        self.core.give_up()
        self._enter(ModelState.FAILED)
        self._verbs.begin("close", self.core.close())

    def _forget_files(self) -> None:
        """Free what was read of the files. The side processes are ended here, as no collection may look at them."""
        if self.prepared is not None:
            self.prepared.close()
            self.prepared = None

    def _enter(self, state: ModelState, progress: ModelProgress | None = None) -> None:
        self.state = state
        self._state_time = self._context.clock()
        self._report(progress)

    def _report(self, progress: ModelProgress | None) -> None:
        self._progress = progress
        self._context.changed(self)
