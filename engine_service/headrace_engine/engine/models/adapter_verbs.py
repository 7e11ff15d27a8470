"""Loads, unloads and loses the adapters of an installed model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_engine.config import Adapter
from headrace_engine.engine.config.adapter_fields import check_adapter
from headrace_engine.engine.config.model_paths import check_path
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.adapters import LoadedAdapter, check_rank, in_use, read_adapter
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.models.state_errors import core_restarting, starting, wrong_state
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import BadModel, quoted
from headrace_engine.model_types import AdapterView, ModelState
from headrace_engine.result_types import FinishReason

if TYPE_CHECKING:
    from headrace_engine.engine.models.model import Model

_log = logging.getLogger(__name__)
_STATES = (ModelState.INITIAL, ModelState.RUNNING, ModelState.STOPPED)


class AdapterVerbs:
    """Loads and unloads adapters of one model, one at a time. A call that is cancelled does not stop the work.

    Args:
        engine: name of the engine.
    """

    def __init__(self, model: Model, pools: WorkPools, engine: str) -> None:
        self._model = model
        self._pools = pools
        self._engine = engine
        self._turn = asyncio.Lock()
        self._working: set[asyncio.Task[AdapterView]] = set()

    async def load(self, adapter: Adapter, options: EngineOptions) -> AdapterView:
        """Load an adapter; make room for it if need be.

        Args:
            options: as they bind the caller.

        Raises:
            InvalidArgument: its name or path is wrong, its rank too large, or the model has no room.
            BadModel: its files cannot be used.
            AlreadyExists: LORA_EXISTS.
            FailedPrecondition: WRONG_STATE, LORA_IN_USE.
            Unavailable: MODEL_STARTING, CORE_RESTARTING.
        """
        check_adapter(adapter, "")
        check_path(adapter.path, options, "path")
        return await self._join(self._load(adapter, options))

    async def unload(self, name: str) -> AdapterView:
        """Unload an adapter; return what it was.

        Raises:
            NotFound: UNKNOWN_LORA.
            FailedPrecondition: WRONG_STATE, LORA_IN_USE.
            Unavailable: MODEL_STARTING, CORE_RESTARTING.
        """
        return await self._join(self._unload(name))

    def list(self) -> list[AdapterView]:
        """Return all adapters, by name."""
        return [self._view(each) for each in self._model.adapters]

    def lose(self, errors: Mapping[int, str]) -> None:
        """Forget adapters that a core could not load again, and end the requests that use them.

        Args:
            errors: why, by number.

        Raises:
            BadModel: the model is starting: it then has all of its adapters, or fails.
        """
        if not errors:
            return
        model = self._model
        if model.state is ModelState.STARTING:
            raise BadModel(next(iter(errors.values())))
        for sequence in model.outputs.using(errors):
            text = errors[model.outputs.command(sequence).adapter]
            model.outputs.finish(sequence, FinishReason.ERROR, f"its adapter was lost with the core: {text}")
        for name in model.adapters.drop(errors):
            _log.warning("adapter_lost: %s: %s", model.name, name)
        model.adapters_changed()

    async def _join(self, work: Coroutine[None, None, AdapterView]) -> AdapterView:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[AdapterView]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # The caller may be gone.

    async def _load(self, adapter: Adapter, options: EngineOptions) -> AdapterView:
        async with self._turn:
            model = self._model
            spec = self._prepared("LoadAdapter").files.spec
            model.adapters.check_capacity()
            found = await self._pools.on_files(adapter.path, read_adapter, adapter, 0, spec, options, "")
            self._prepared("LoadAdapter")  # It may have been stopped or started in the meantime.
            check_rank(found, model.adapters.rank, "")
            if model.adapters.known(found):
                return self._view(model.adapters.find(found.name))
            number, unloaded = model.adapters.free_number(self._uses)
            found = replace(found, plan=replace(found.plan, number=number))
            try:
                if model.state is ModelState.RUNNING:
                    await model.core.load_adapter(found.plan)
                model.adapters.add(found)
            finally:
                model.adapters_changed()
            return replace(self._view(found), unloaded=unloaded)

    async def _unload(self, name: str) -> AdapterView:
        async with self._turn:
            model = self._model
            self._prepared("UnloadAdapter")
            found = model.adapters.find(name)
            view = self._view(found)
            if view.sequences:
                text = f"adapter {quoted(name)} is in use by {view.sequences} sequences"
                raise in_use(f"{text}: wait until their requests have ended, or stop them", model.name)
            model.adapters.drop([found.plan.number])
            model.adapters_changed()
            return view

    def _prepared(self, verb: str) -> Prepared:
        """Return what was read of the model, in a state that allows a verb."""
        model = self._model
        if model.state is ModelState.RUNNING and not model.serving:
            raise core_restarting(model.name)
        if model.state not in _STATES and model.coming:
            raise starting(model.name, model.state)
        if model.state not in _STATES or model.prepared is None:
            raise wrong_state(verb, model.name, model.state, model.failure, _STATES)
        return model.prepared

    def _uses(self, adapter: LoadedAdapter) -> bool:
        return bool(self._model.outputs.using([adapter.plan.number]))

    def _view(self, adapter: LoadedAdapter) -> AdapterView:
        return AdapterView(
            model_name=self._model.name,
            engine=self._engine,
            name=adapter.name,
            path=adapter.path,
            digest=adapter.digest,
            rank=adapter.plan.rank,
            sequences=len(self._model.outputs.using([adapter.plan.number])),
        )
