"""SerializeModel: writes models in our own format, into folders or into memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import fields

from headrace_engine.backend_choices import WEIGHT_GROUPS
from headrace_engine.config import ComputeDtype, ModelFormat, RuntimeConfig, WeightQuant
from headrace_engine.engine.config.hubs import check_hub
from headrace_engine.engine.config.model_paths import MEMORY, check_path, check_prefix, locate, locate_output
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.config.runtime import check_config
from headrace_engine.engine.models.memory_models import MemoryModels, is_file_name
from headrace_engine.engine.models.registry import ModelRegistry
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import SerializePlan
from headrace_engine.model_types import ModelProgress, SerializedModel

Serializer = Callable[[SerializePlan], AsyncGenerator[ModelProgress | bool, None]]
"""Writes a model: yields progress, and at last whether files were written. Closing it ends the work."""

_FIELDS = (
    "model_name", "model_path", "file_prefix", "revision", "hub", "format", "dtype", "weight_quant",
    "weight_quant_group_size",
)  # fmt: skip
"""Fields of a config that say what is written."""


class Serializing:
    """Writes models, one at a time, and frees those in memory.

    Args:
        registry: the installed models, some of which were made of models in memory.
        memory: the models in memory.
        serializer: writes them; None: this engine writes none.
    """

    def __init__(
        self,
        options: EngineOptions,
        registry: ModelRegistry,
        memory: MemoryModels,
        pools: WorkPools,
        serializer: Serializer | None,
    ) -> None:
        self._options = options
        self._registry = registry
        self._memory = memory
        self._pools = pools
        self._serializer = serializer
        self._turn = asyncio.Lock()

    async def serialize(
        self, config: RuntimeConfig, output_dir: str, *, skip_if_exists: bool
    ) -> AsyncGenerator[ModelProgress | SerializedModel, None]:
        """Yield progress, and at last the model that was written.

        Raises:
            InvalidArgument: a field is wrong, or the folder cannot be written.
            BadModel: the model cannot be read, or is no Hugging Face model.
            AlreadyExists: another process is writing these files.
            OutOfMemory: too many models are in memory.
        """
        if self._serializer is None:
            raise InvalidArgument.unsupported("config", "this engine writes no models")
        async with self._turn:
            plan = await self._plan(config, output_dir, skip_if_exists)
            async with aclosing(self._serializer(plan)) as steps:
                async for step in steps:
                    if isinstance(step, bool):
                        path = plan.folder if output_dir else f"{MEMORY}{plan.name}"
                        yield SerializedModel(path, plan.name, step)
                    else:
                        yield step

    def free(self, name: str) -> None:
        """Delete a model in memory, once no installed model was made of it."""
        self._memory.free(name, self._registry.in_memory())

    async def _plan(self, config: RuntimeConfig, output_dir: str, skip_if_exists: bool) -> SerializePlan:
        _check(config)
        check_config(config, self._options.backend)
        check_path(config.model_path, self._options)
        check_hub(config.hub, self._options)
        check_prefix(config.file_prefix)
        location = await self._pools.on_files(config.model_path, locate, config.model_path, self._options)
        name, quant = config.model_name, config.weight_quant or WeightQuant.NONE
        group = config.weight_quant_group_size
        folder = self._memory.open(name) if not output_dir else locate_output(output_dir, self._options)
        return SerializePlan(
            path=location.path,
            hub_only=location.is_hub_name,
            file_prefix=config.file_prefix,
            revision=config.revision,
            hub=config.hub,
            dtype=config.dtype or ComputeDtype.AUTO,
            weight_quant=quant,
            weight_quant_group_size=WEIGHT_GROUPS.get(quant, 0) if group is None else group,
            folder=str(folder),
            name=name,
            skip_if_exists=skip_if_exists,
        )


def _check(config: RuntimeConfig) -> None:
    unset = RuntimeConfig()
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name not in _FIELDS and value != getattr(unset, each.name):
            raise InvalidArgument.field(f"config.{each.name}", f"= {value} says nothing about files: set it at install")
    if not is_file_name(config.model_name):
        text = 'must be 1 to 128 of letters, digits, ".", "_" and "-", the first a letter or digit: it names files'
        raise InvalidArgument.field("config.model_name", f"= {config.model_name!r} {text}")
    if config.format not in (None, ModelFormat.AUTO, ModelFormat.HF):
        raise InvalidArgument.field("config.format", f"= {config.format}: only models of format HF are written")
    if config.model_path.startswith(MEMORY):
        raise InvalidArgument.field("config.model_path", f"= {config.model_path!r} is written already")
