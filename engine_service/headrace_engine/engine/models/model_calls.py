"""The engine's calls about models."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from headrace_engine.chat_types import Chat
from headrace_engine.config import Adapter, ModelFormat, RuntimeConfig
from headrace_engine.engine.config.field_checks import check_ids
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.models.inspection import inspect
from headrace_engine.engine.models.measured import Measured, measured
from headrace_engine.engine.models.memory_models import MemoryModels
from headrace_engine.engine.models.registry import ModelRegistry
from headrace_engine.engine.models.serializing import Serializer, Serializing
from headrace_engine.engine.models.statistics_view import engine_stat
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.engine.text.tokenizer_files import TokenizerFiles
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import Unavailable, quoted
from headrace_engine.model_types import AdapterView, ModelDescription, ModelProgress, ModelView, SerializedModel
from headrace_engine.request_types import Detokenized, Tokenized
from headrace_engine.stat_types import EngineStat


class ModelCalls:
    """Calls to install, start and watch models, and what needs a model but no request. Arguments as `Engine`.

    Attributes:
        name: name of the engine.
        instance_id: random id of this run of the engine.
        pools: where blocking work is done.
    """

    def __init__(
        self, options: EngineOptions, launcher: CoreLauncher, clock: Clock, serializer: Serializer | None
    ) -> None:
        self.name = options.name
        self.instance_id = secrets.token_hex(8)
        self._clock = clock
        self._draining = False
        self.pools = WorkPools(options.file_limit)
        self._memory = MemoryModels()
        self._options = options = replace(options, memory_dir=self._memory.folder)
        self._models = ModelRegistry(options, launcher, self.pools, self._memory, clock)
        self._serializing = Serializing(options, self._models, self._memory, self.pools, serializer)

    @property
    def draining(self) -> bool:
        """True if the engine accepts no new requests and is shutting down."""
        return self._draining

    async def install_model(self, config: RuntimeConfig, *, no_wait: bool = False) -> ModelView:
        """Check a config and read the model's files, to INITIAL.

        Raises:
            InvalidArgument, BadModel: the config or the files are wrong.
            AlreadyExists: the name has another config.
        """
        self._refuse_while_draining()
        return await self._models.install(config, no_wait=no_wait)

    async def start_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        """Load a model onto its device and warm it up, to RUNNING."""
        self._refuse_while_draining()
        return await self._models.start(model_name, no_wait=no_wait)

    async def stop_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        """Let running requests end, then end the core and free its memory, to STOPPED."""
        return await self._models.stop(model_name, no_wait=no_wait)

    async def release_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        """Free the model and its name. Logs of its requests stay until they are released."""
        return await self._models.release(model_name, no_wait=no_wait)

    def get_model(self, model_name: str) -> ModelView:
        """Return the current state of a model, with its effective config."""
        return self._models.get(model_name).view()

    def list_models(self) -> list[ModelView]:
        """Return all models, sorted by name, without their configs."""
        return [model.view(with_effective=False) for model in self._models.all()]

    def watch_model(self, model_name: str) -> AsyncGenerator[ModelView, None]:
        """Yield the present view, then every change, until the model is released. "": all models, for ever."""
        return self._models.watch(model_name)

    async def load_adapter(self, model_name: str, adapter: Adapter) -> AdapterView:
        """Load an adapter of a model; the least recently used one that no request uses makes room.

        Raises:
            HeadraceError: as `AdapterVerbs.load`; NotFound: UNKNOWN_MODEL.
        """
        self._refuse_while_draining()
        return await self._models.load_adapter(model_name, adapter)

    async def unload_adapter(self, model_name: str, name: str) -> AdapterView:
        """Unload an adapter that no request uses; return what it was."""
        return await self._models.unload_adapter(model_name, name)

    def list_adapters(self, model_name: str) -> list[AdapterView]:
        """Return the adapters of a model, by name."""
        return self._models.get(model_name).adapter_verbs.list()

    async def inspect_model(
        self,
        model_path: str,
        *,
        file_prefix: str = "",
        revision: str = "",
        hub: str = "",
        format: ModelFormat | None = None,  # noqa: A002
    ) -> ModelDescription:
        """Describe the model at a path, without installing it."""
        source = RuntimeConfig(
            model_path=model_path, file_prefix=file_prefix, revision=revision, hub=hub, format=format
        )
        return await inspect(source, self._options, self.pools)

    def serialize_model(
        self, config: RuntimeConfig, output_dir: str, *, skip_if_exists: bool = False
    ) -> AsyncGenerator[ModelProgress | SerializedModel, None]:
        """Write a model in our own format; yield progress, and at last what was written. Close it to end the work.

        Args:
            config: name of the files, the model, and how its weights are stored; nothing else may be set.
            output_dir: folder on this host; "": in memory.
            skip_if_exists: keep files that were made of the same model in the same way.
        """
        self._refuse_while_draining()
        return self._serializing.serialize(config, output_dir, skip_if_exists=skip_if_exists)

    def free_serialized_model(self, name: str) -> None:
        """Delete a model in memory, once no installed model was made of it."""
        self._serializing.free(name)

    def engine_stats(self, model_name: str = "") -> list[EngineStat]:
        """Return the statistics of one model, or of all."""
        models = [self._models.get(model_name)] if model_name else self._models.all()
        return [engine_stat(model, self.name, self.instance_id, self._clock()) for model in models]

    def measured(self) -> list[Measured]:
        """Return what is measured of each model."""
        return [measured(model, self.name, self.instance_id, self._clock()) for model in self._models.all()]

    async def tokenize(
        self, model_name: str, prompt: str | Chat, add_special_tokens: bool | None = None, party: str = ""
    ) -> Tokenized:
        """Return the ids of a prompt, as start_request would use them, and its text. `party` owns the work."""
        prepared = self._models.prepared(model_name)
        return await prepared.text.tokenize(prompt, add_special_tokens, prepared.max_length, party)

    async def tokenizer_files(self, model_name: str) -> TokenizerFiles:
        """Return a model's tokenizer as files."""
        prepared = self._models.prepared(model_name)
        return await prepared.text.files(prepared.files.spec.architecture)

    async def tokenizer_archive(self, model_name: str) -> bytes:
        """Return the same files as a zip."""
        prepared = self._models.prepared(model_name)
        return await prepared.text.archive(prepared.files.spec.architecture)

    def tokens_to_prefill(self, model_name: str) -> int:
        """Return the prompt tokens that a model has still to compute, without those in its prefix cache."""
        return self._models.get(model_name).outputs.tokens_to_prefill

    async def detokenize(
        self, model_name: str, token_ids: Sequence[int], skip_special_tokens: bool, party: str = ""
    ) -> Detokenized:
        """Return the text of ids, and the bytes of each. `party` owns the work."""
        prepared = self._models.prepared(model_name)
        vocab_size = prepared.files.spec.vocab_size
        await prepared.text.in_turn(
            party, len(token_ids), check_ids, "token_ids", token_ids, vocab_size, prepared.holes
        )
        return await prepared.text.detokenize(token_ids, skip_special_tokens, party)

    def _refuse_while_draining(self) -> None:
        if self._draining:
            raise Unavailable(f"engine {quoted(self.name)} is shutting down", retry_after=1.0)
