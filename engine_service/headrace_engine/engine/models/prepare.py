"""Reads a model for InstallModel: its files' headers, its tokenizer, its generation defaults. Blocking."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from headrace_proto.pure.log_budget import LogBudget

from headrace_engine.config import KvCacheMode, ModelFormat, RuntimeConfig
from headrace_engine.engine.config.adapter_fields import room_for
from headrace_engine.engine.config.backend_fields import check_storage
from headrace_engine.engine.config.generation import filled
from headrace_engine.engine.config.hubs import check_hub
from headrace_engine.engine.config.model_defaults import check_default_ids, model_defaults
from headrace_engine.engine.config.model_paths import ModelLocation, check_prefix, locate
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.config.runtime import check_config, effective_config
from headrace_engine.engine.formats.formats import ResponseFormats
from headrace_engine.engine.models.adapters import KeptAdapters, LoadedAdapter, check_rank, read_adapter
from headrace_engine.engine.text.text import TextProcessor
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import BadModel, FieldViolation, HeadraceError, InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.model_types import EffectiveConfig, ModelDescription
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.key_biases import large_key_biases
from headrace_engine.models.loaders.hub import is_name
from headrace_engine.models.tokenizer import load_tokenizer
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
    """

    files: ModelFiles
    text: TextProcessor
    effective: EffectiveConfig
    formats: ResponseFormats
    not_applied: tuple[ConfigWarning, ...] = ()
    holes: frozenset[int] = frozenset()
    adapters: tuple[LoadedAdapter, ...] = ()

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
    files = _open(config, options)
    _check_files(config, files, options)
    bundle = load_tokenizer(files)
    processor = TextProcessor(bundle, config.chat_template, pools)
    if config.chat_template:
        processor.check_template()
    files = files.with_rows(bundle.vocab_size)
    defaults, not_applied = model_defaults(files.generation, bundle.eos_ids)
    check_default_ids(defaults, files.spec.vocab_size, bundle.holes)
    if instead is None:
        adapters = _read_adapters(config, files, options)
        most, rank = room_for(config, [each.plan.rank for each in adapters])
    else:
        adapters = _read_kept(config, files, options, instead)
        most, rank = room_for(config, [instead.kept.rank])
    effective_runtime = effective_config(replace(config, format=files.format, lora_max_num=most, lora_max_rank=rank))
    warnings = tuple(ConfigWarning("config.model_path", text) for text in (*files.warnings, *bundle.warnings))
    warnings += _kv_warnings(config, files)
    _log_warnings(config.model_name, warnings)
    effective = EffectiveConfig(
        config=effective_runtime,
        architecture=files.spec.architecture,
        resolved_revision=files.revision,
        weight_bytes=files.weight_bytes,
        vocab_size=files.spec.vocab_size,
        model_max_length=files.spec.max_length,
        generation_defaults=replace(filled(defaults), lease=effective_runtime.default_lease),
        warnings=(*not_applied, *warnings),
    )
    formats = ResponseFormats(bundle, files.spec.vocab_size, pools)
    return Prepared(files, processor, effective, formats, not_applied, bundle.holes, adapters)


def _log_warnings(model_name: str, warnings: tuple[ConfigWarning, ...]) -> None:
    for warning in warnings:
        if (omitted := _lines.spend("model_suspicious", party=model_name)) is not None:
            _log.warning("model_suspicious: %s: %s, omitted: %d", model_name, warning.message, omitted)


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


def _kv_warnings(config: RuntimeConfig, files: ModelFiles) -> tuple[ConfigWarning, ...]:
    text = large_key_biases(files) if config.kv_cache_mode is KvCacheMode.UINT4 else ""
    return (ConfigWarning("config.kv_cache_mode", text),) if text else ()


def check_model(config: RuntimeConfig, options: EngineOptions) -> None:
    """Refuse a model that could not be installed, by its config and, if it is on this host, its files' headers.

    Raises:
        BadModel: there is no such path or hub name, or no loader reads its files.
        InvalidArgument: the config is wrong.
    """
    check_config(config, options.backend)
    if not options.allow_hub or not is_name(config.model_path) or _exists(config.model_path):
        _check_files(config, _open(config, options), options)


def describe(config: RuntimeConfig, options: EngineOptions) -> ModelDescription:
    """Describe the model at a path.

    Raises:
        BadModel: there is no readable model.
        InvalidArgument: a field of InspectModel is wrong.
    """
    try:
        files = _open(config, options)
    except InvalidArgument as error:
        raise _as_inspection(error) from error
    defaults, vocab_size, refusal = _install_check(files)
    spec = files.spec
    return ModelDescription(
        format=files.format,
        architecture=spec.architecture,
        config_json=files.config_json,
        generation_config=defaults,
        max_length=spec.max_length,
        vocab_size=vocab_size,
        num_parameters=files.num_parameters,
        weight_bytes=files.weight_bytes,
        kv_bytes_per_token=2 * spec.num_layers * spec.kv_width * files.bytes_per_value,
        resolved_revision=files.revision,
        chat_template=files.chat_template,
        refusal=refusal,
    )


def _install_check(files: ModelFiles) -> tuple[GenerationConfig, int, HeadraceError | None]:
    """Return generation defaults and vocabulary size, as far as readable, and the error an install would raise."""
    defaults, vocab_size = GenerationConfig(), files.spec.vocab_size
    try:
        defaults, _ = model_defaults(files.generation, files.eos_ids)
        bundle = load_tokenizer(files)
        vocab_size = bundle.vocab_size
        defaults = replace(defaults, eos_token_id=bundle.eos_ids)
        check_default_ids(defaults, vocab_size, bundle.holes)
        _check_length(RuntimeConfig(), files)
    except HeadraceError as error:
        return defaults, vocab_size, error
    return defaults, vocab_size, None


def _as_inspection(error: InvalidArgument) -> InvalidArgument:
    """Return the same error for InspectModel, whose request has the fields at top level."""
    violations = [FieldViolation(v.field.removeprefix("config."), v.description) for v in error.violations]
    return InvalidArgument(error.message.removeprefix("config."), reason=error.reason, violations=violations)


def _open(config: RuntimeConfig, options: EngineOptions) -> ModelFiles:
    check_hub(config.hub, options)
    check_prefix(config.file_prefix)
    location = locate(config.model_path, options)
    if not options.allow_hub and not _exists(location.path):
        raise BadModel(f"{config.model_path}: no such file or directory, and hub access is disabled (--no-hub)")
    return _open_location(location, config)


def _open_location(location: ModelLocation, config: RuntimeConfig) -> ModelFiles:
    try:
        return open_model(
            location.path,
            hub_only=location.is_hub_name,
            format=config.format or ModelFormat.AUTO,
            file_prefix=config.file_prefix,
            revision=config.revision,
            hub=config.hub,
            rope_scaling=config.rope_scaling,
        )
    except OSError as error:
        raise _unreadable(config.model_path, error) from error


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError as error:  # the name is too long, or a directory is not readable
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> BadModel:
    return BadModel(f"{error.strerror or error}: {path}")  # Errors shorten a long path themselves.


def _check_files(config: RuntimeConfig, files: ModelFiles, options: EngineOptions) -> None:
    _check_length(config, files)
    check_storage(config, files, options.backend)


def _check_length(config: RuntimeConfig, files: ModelFiles) -> None:
    limit = files.spec.max_length
    if limit < 2:
        raise BadModel(f"{files.path.name}: the model takes sequences of {limit} token(s); at least 2 are needed")
    if config.max_length is not None and config.max_length > limit:
        text = f"= {config.max_length} exceeds the model's maximum of {limit} tokens"
        raise InvalidArgument.field("config.max_length", f"{text}; set rope_scaling to extend it")
