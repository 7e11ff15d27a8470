"""Describes a model's files for InspectModel, without installing it."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.hubs import check_hub
from headrace_engine.engine.config.model_defaults import check_default_ids, model_defaults
from headrace_engine.engine.config.model_paths import check_path
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.opening import check_length, open_files
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import FieldViolation, HeadraceError, InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.model_types import ModelDescription
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.tokenizer import load_tokenizer


async def inspect(config: RuntimeConfig, options: EngineOptions, pools: WorkPools) -> ModelDescription:
    """Describe the model at a path, in a thread for blocking work.

    Raises:
        BadModel: there is no readable model.
        InvalidArgument: a field of InspectModel is wrong.
    """
    if not config.model_path:
        raise InvalidArgument.field("model_path", "is not set: give a directory, file or hub name")
    check_path(config.model_path, options, "model_path")
    check_hub(config.hub, options, "hub")
    return await pools.on_files(config.model_path, describe, config, options)


def describe(config: RuntimeConfig, options: EngineOptions) -> ModelDescription:
    """Describe the model at a path. Blocking.

    Raises:
        BadModel: there is no readable model.
        InvalidArgument: a field of InspectModel is wrong.
    """
    try:
        files = open_files(config, options)
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
        check_length(RuntimeConfig(), files)
    except HeadraceError as error:
        return defaults, vocab_size, error
    return defaults, vocab_size, None


def _as_inspection(error: InvalidArgument) -> InvalidArgument:
    """Return the same error for InspectModel, whose request has the fields at top level."""
    violations = [FieldViolation(v.field.removeprefix("config."), v.description) for v in error.violations]
    return InvalidArgument(error.message.removeprefix("config."), reason=error.reason, violations=violations)
