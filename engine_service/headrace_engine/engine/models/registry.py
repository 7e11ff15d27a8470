"""All models of one engine, by name, and their persistence over restarts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import replace

from headrace_engine.config import Adapter, RuntimeConfig
from headrace_engine.engine.config.hubs import check_hub
from headrace_engine.engine.config.model_paths import MEMORY, check_paths, resolve_roots
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.config.runtime import check_config
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.models.adapters import KeptAdapters
from headrace_engine.engine.models.context import ModelContext
from headrace_engine.engine.models.kept_models import KeptModels, Replaced
from headrace_engine.engine.models.memory_models import MemoryModels
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.opening import check_model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.models.releases import Release, Releases
from headrace_engine.engine.models.state_errors import COMPUTING, starting, way_out
from headrace_engine.engine.models.state_store import SavedModel, StateStore
from headrace_engine.engine.models.watchers import Watchers
from headrace_engine.engine.results.statistics import Clock, StepHistory
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import AlreadyExists, FailedPrecondition, NotFound, quoted
from headrace_engine.model_types import AdapterView, ModelState, ModelView


class ModelRegistry:
    """Models by name. A name is in use from InstallModel until ReleaseModel."""

    def __init__(
        self, options: EngineOptions, launcher: CoreLauncher, pools: WorkPools, memory: MemoryModels, clock: Clock
    ) -> None:
        self._options = options
        self._pools = pools
        self._context = ModelContext(options, options, launcher, pools, clock, self._changed)
        self._operator_context = replace(self._context, options=replace(options, model_roots=None, hubs=None))
        self._declared: dict[str, RuntimeConfig] = {}
        resolve_roots(options)
        self._models: dict[str, Model] = {}
        self._histories = defaultdict[str, StepHistory](lambda: StepHistory(clock))
        self._watchers = Watchers()
        self._kept = KeptModels(StateStore(options.state_dir))
        self._releases = Releases(clock, lambda: memory.delete_freed(self.in_memory()))

    def all(self) -> list[Model]:
        """Return all models, sorted by name."""
        return [self._models[name] for name in sorted(self._models)]

    def get(self, model_name: str) -> Model:
        """Return a model.

        Raises:
            NotFound: UNKNOWN_MODEL.
        """
        model = self._models.get(model_name)
        if model is None:
            known = ", ".join(sorted(self._models)) or "none"
            text = f"no model is named {quoted(model_name)}; installed: {known}"
            raise NotFound(text, reason="UNKNOWN_MODEL", metadata={"model_name": model_name})
        return model

    def in_memory(self) -> set[str]:
        """Return the names of the models in memory that installed models were made of."""
        configs = [model.config for model in self._models.values()]
        paths = [path for config in configs for path in (config.model_path, config.draft_model)]
        return {path.removeprefix(MEMORY) for path in paths if path.startswith(MEMORY)}

    def prepared(self, model_name: str) -> Prepared:
        """Return the files, tokenizer and defaults of an installed model.

        Raises:
            NotFound: UNKNOWN_MODEL.
            FailedPrecondition: it is being installed, or that failed.
            Unavailable: MODEL_STARTING.
        """
        model = self.get(model_name)
        if model.prepared is None:
            if model.coming:
                raise starting(model_name, model.state)
            text = f"model {quoted(model_name)} is {model.state}{way_out(model.state, model.failure)}"
            raise FailedPrecondition(text, reason="MODEL_NOT_RUNNING", state=model.state)
        return model.prepared

    async def install(self, config: RuntimeConfig, *, no_wait: bool) -> ModelView:
        """Install a model, or join the install of the same config.

        Raises:
            InvalidArgument, BadModel: the config or the files are wrong.
            AlreadyExists: the name has another config.
        """
        check_config(config, self._options.backend)
        model = self._models.get(config.model_name)
        if model is None or model.config != config:
            options = self._context_of(config).options
            check_paths(config, options)
            check_hub(config.hub, options)
        if model is None or model.state is ModelState.FAILED:
            model = self._add(config)
        elif model.config != config:
            first = "stop it, then release it, first" if model.state in COMPUTING else "release it first"
            text = f"model {quoted(config.model_name)} is installed with another config: {first}"
            raise AlreadyExists(text, metadata={"model_name": config.model_name})
        return await self._after(model, model.install(no_wait=no_wait))

    async def start(self, model_name: str, *, no_wait: bool) -> ModelView:
        """Start a model, to RUNNING."""
        model = self.get(model_name)
        return await self._after(model, model.start(no_wait=no_wait))

    async def stop(self, model_name: str, *, no_wait: bool) -> ModelView:
        """Stop a model, to STOPPED."""
        model = self.get(model_name)
        return await self._after(model, model.stop(no_wait=no_wait))

    async def release(self, model_name: str, *, no_wait: bool) -> ModelView:
        """Release a model and its name. A repeated call returns the same answer for RELEASE_MEMORY."""
        release = self._releases.find(model_name) or self._release(model_name)
        await self._kept.saved()
        if not no_wait:
            await asyncio.shield(release.leaving)
        return release.view

    async def load_adapter(self, model_name: str, adapter: Adapter) -> AdapterView:
        """Load an adapter of a model."""
        return await self._after_change(self.get(model_name).adapter_verbs.load(adapter, self._options))

    async def unload_adapter(self, model_name: str, name: str) -> AdapterView:
        """Unload an adapter of a model."""
        return await self._after_change(self.get(model_name).adapter_verbs.unload(name))

    async def _after_change(self, verb: Awaitable[AdapterView]) -> AdapterView:
        try:
            return await verb
        finally:
            await self._kept.saved()

    async def _after(self, model: Model, verb: Awaitable[None]) -> ModelView:
        """Await a verb, and its change on disk even if it failed; return the view."""
        try:
            await verb
        finally:
            await self._kept.saved()
        return model.view()

    def watch(self, model_name: str) -> AsyncGenerator[ModelView, None]:
        """Yield views as they change.

        Raises:
            NotFound: UNKNOWN_MODEL, at the call.
        """
        if model_name:
            self.get(model_name)
        return self._watchers.watch(model_name, lambda: self._views(model_name))

    async def restore(self, declared: Sequence[RuntimeConfig]) -> list[Replaced]:
        """Restore the kept models in the background; failures are in the models' states.

        Args:
            declared: configs that the caller installs next. Kept models of the same name with other
                configs are not restored, and are forgotten once the new one has been read.

        Returns:
            The kept models that declared configs replace.

        Raises:
            InvalidArgument, BadModel: a declared config is wrong; raised before any change.
            FailedPrecondition: the kept models cannot be read, or another engine uses the folder.
        """
        self._declared = {config.model_name: config for config in declared}
        for config in declared:
            await self._pools.on_files(config.model_path, check_model, config, self._operator_context.options)
        kept, replaced = self._kept.open(declared)
        for saved in kept:
            model = self._new(saved.config, by_operator=saved.by_operator, adapters=saved.adapters)
            if saved.wanted is ModelState.RUNNING:
                model.wanted = ModelState.RUNNING
        for model in self.all():
            await model.install(no_wait=True)
            if model.wanted is ModelState.RUNNING:
                await model.start(no_wait=True)
        return replaced

    async def drain(self, limit: float) -> None:
        """Let requests run for at most `limit` seconds, then end them with DRAINED."""
        await asyncio.gather(*(model.core.drain(limit) for model in self.all()))

    async def close(self) -> None:
        """End all cores and side processes."""
        await asyncio.gather(*(model.close() for model in self._models.values()), self._releases.close())
        await self._kept.close()

    def _add(self, config: RuntimeConfig) -> Model:
        failed = self._models.get(config.model_name)
        if failed is not None:
            self._discard(failed)
        model = self._new(config, by_operator=failed is not None and failed.by_operator and failed.config == config)
        self._save()
        return model

    def _new(self, config: RuntimeConfig, *, by_operator: bool, adapters: KeptAdapters | None = None) -> Model:
        name = config.model_name
        self._releases.forget(name)
        context = self._operator_context if by_operator else self._context_of(config)
        model = self._models[name] = Model(config, context, self._histories[name], adapters)
        return model

    def _context_of(self, config: RuntimeConfig) -> ModelContext:
        """Return the context of a model: one that the operator declared may lie anywhere."""
        return self._operator_context if self._declared.get(config.model_name) == config else self._context

    def _release(self, model_name: str) -> Release:
        model = self.get(model_name)
        model.release()
        del self._models[model_name]
        self._save()
        return self._releases.remember(model.view(), self._discard(model))

    def _discard(self, model: Model) -> asyncio.Task[None]:
        """Free a model that has left the registry. `_releases` owns the task, and waits for it at the end."""
        return self._releases.free(model.close())

    def _views(self, model_name: str) -> list[ModelView]:
        models = self.all() if not model_name else [m for m in self.all() if m.name == model_name]
        return [model.view(with_effective=False) for model in models]

    def _changed(self, model: Model) -> None:
        self._watchers.publish(model.view(with_effective=False))
        if model.prepared is not None or model.wanted is ModelState.RELEASED:
            self._kept.settle(model.name)
        self._save()

    def _save(self) -> None:
        self._kept.keep(
            SavedModel(model.config, model.wanted, model.by_operator, model.kept_adapters)
            for model in self._models.values()
        )
