"""Reads a model for InstallModel: its files' headers, its tokenizer, its generation defaults. Blocking."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from headrace_proto.pure.log_budget import LogBudget

from headrace_engine.config import KvCacheMode, RuntimeConfig
from headrace_engine.engine.config.adapter_fields import adapter_capacity
from headrace_engine.engine.config.generation import filled
from headrace_engine.engine.config.model_defaults import check_default_ids, model_defaults
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.config.runtime import check_config, effective_config
from headrace_engine.engine.formats.formats import ResponseFormats
from headrace_engine.engine.models.adapters import KeptAdapters, LoadedAdapter, check_rank, read_adapter
from headrace_engine.engine.models.draft_model import DraftModel, read_draft_model
from headrace_engine.engine.models.opening import check_files, open_files
from headrace_engine.engine.text.text import TextProcessor
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.model_types import EffectiveConfig
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.key_biases import large_key_biases
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from headrace_engine.request_types import ConfigWarning

_log = logging.getLogger(__name__)
_lines = LogBudget()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be started.

    Attributes:
        holes: ids below vocab_size that the tokenizer does not define.
        not_applied: warnings about fields of the model's generation_config.json that this build does not support.
        adapters: those of the config, or those kept instead.
        draft: the draft model; None: there is none.
    """

    files: ModelFiles
    text: TextProcessor
    effective: EffectiveConfig
    formats: ResponseFormats
    not_applied: tuple[ConfigWarning, ...] = ()
    holes: frozenset[int] = frozenset()
    adapters: tuple[LoadedAdapter, ...] = ()
    draft: DraftModel | None = None

    def close(self) -> None:
        """End the side processes that render chats and check response formats."""
        self.text.close()
        self.formats.close()

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence, in tokens: as configured, else the model's own limit."""
        return self.effective.config.max_length or self.files.spec.max_length


@dataclass(frozen=True, slots=True)
class CallersAdapters:
    """Adapters that callers have loaded since the install, and the options that bind them."""

    kept: KeptAdapters
    options: EngineOptions


def prepare(
    config: RuntimeConfig,
    options: EngineOptions,
    pools: WorkPools | None = None,
    instead: CallersAdapters | None = None,
) -> Prepared:
    """Read and check everything that is possible without loading weights.

    Args:
        pools: thread pools for the model's texts and formats; None: pools of its own.
        instead: adapters instead of those of the config.

    Raises:
        BadModel: the files are missing, damaged or of an unsupported kind.
        InvalidArgument: the config does not fit the model, or this engine.
    """
    # A config kept over a restart may have been accepted by another build or with other options.
    check_config(config, options.backend)
    files = open_files(config, options)
    check_files(config, files, options)
    bundle = load_tokenizer(files)
    processor = TextProcessor(bundle, config.chat_template, pools)
    if config.chat_template:
        processor.check_template()
    files = files.with_rows(bundle.vocab_size)
    draft = read_draft_model(config, options, files, bundle)
    defaults, not_applied = model_defaults(files.generation, bundle.eos_ids)
    check_default_ids(defaults, files.spec.vocab_size, bundle.holes)
    if instead is None:
        adapters = _read_adapters(config, files, options)
        most, rank = adapter_capacity(config, [each.plan.rank for each in adapters])
    else:
        adapters = _read_kept(config, files, options, instead)
        most, rank = adapter_capacity(config, [instead.kept.rank])
    chosen = replace(config, format=files.format, lora_max_num=most, lora_max_rank=rank)
    effective_runtime = effective_config(chosen, options.backend)
    warnings = _warnings(config, files, bundle)
    effective = EffectiveConfig(
        config=effective_runtime,
        architecture=files.spec.architecture,
        resolved_revision=files.revision,
        weight_bytes=files.weight_bytes + (0 if draft is None else draft.weight_bytes),
        vocab_size=files.spec.vocab_size,
        model_max_length=files.spec.max_length,
        generation_defaults=replace(filled(defaults), lease=effective_runtime.default_lease),
        warnings=(*not_applied, *warnings),
    )
    formats = ResponseFormats(bundle, files.spec.vocab_size, pools)
    return Prepared(files, processor, effective, formats, not_applied, bundle.holes, adapters, draft)


def _warnings(config: RuntimeConfig, files: ModelFiles, bundle: TokenizerBundle) -> tuple[ConfigWarning, ...]:
    """Return what is suspicious about the files, and log it."""
    found = [ConfigWarning("config.model_path", text) for text in (*files.warnings, *bundle.warnings)]
    if config.kv_cache_mode is KvCacheMode.UINT4 and (text := large_key_biases(files)):
        found.append(ConfigWarning("config.kv_cache_mode", text))
    for warning in found:
        if (omitted := _lines.spend("model_suspicious", party=config.model_name)) is not None:
            _log.warning("model_suspicious: %s: %s, omitted: %d", config.model_name, warning.message, omitted)
    return tuple(found)


def _read_adapters(config: RuntimeConfig, files: ModelFiles, options: EngineOptions) -> tuple[LoadedAdapter, ...]:
    found = []
    for index, adapter in enumerate(config.adapters):
        prefix = f"config.adapters[{index}]."
        found.append(read_adapter(adapter, index + 1, files.spec, options, prefix))
        if config.lora_max_rank is not None:
            check_rank(found[-1], config.lora_max_rank, prefix)
    return tuple(found)


def _read_kept(
    config: RuntimeConfig, files: ModelFiles, options: EngineOptions, instead: CallersAdapters
) -> tuple[LoadedAdapter, ...]:
    """Read the adapters kept from before a restart; those that the config does not name are bound as callers are."""
    found = []
    for number, adapter in enumerate(instead.kept.loaded, start=1):
        bounds = options if adapter in config.adapters else instead.options
        found.append(read_adapter(adapter, number, files.spec, bounds, ""))
        check_rank(found[-1], instead.kept.rank, "")
    return tuple(found)
