"""What InstallModel reads of a model: its files' headers, its tokenizer, its generation defaults. Blocking."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace_engine.config import ModelFormat, RuntimeConfig
from headrace_engine.engine.chat_template import ChatTemplate
from headrace_engine.engine.generation import model_defaults
from headrace_engine.engine.options import EngineOptions
from headrace_engine.engine.runtime import effective_config
from headrace_engine.engine.text import TextProcessor
from headrace_engine.errors import BadModel, HeadraceError, InvalidArgument
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.families import apply_rope_scaling
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.types import EffectiveConfig, ModelDescription, Warning


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be started."""

    files: ModelFiles
    text: TextProcessor
    effective: EffectiveConfig

    @property
    def max_length(self) -> int:
        """Tokens that no sequence exceeds: as configured, else the model's own limit."""
        return self.effective.config.max_length or self.files.spec.max_length


def prepare(config: RuntimeConfig, options: EngineOptions) -> Prepared:
    """Read and check everything that can be known without loading weights.

    Raises:
        BadModel: the files are missing, damaged or of an unsupported kind.
        InvalidArgument: the config does not fit the model.
    """
    files = _open(config, options)
    bundle = load_tokenizer(files)
    if config.chat_template is not None:
        ChatTemplate(config.chat_template, bundle.template_variables)
    if config.rope_scaling is not None:
        apply_rope_scaling(files.spec, config.rope_scaling)
    _check_length(config, files)
    defaults, warnings = model_defaults(files.generation, files.eos_ids)
    effective = EffectiveConfig(
        config=effective_config(replace(config, format=files.format)),
        architecture=files.spec.architecture,
        resolved_revision=files.revision,
        weight_bytes=files.weight_bytes,
        vocab_size=files.spec.vocab_size,
        model_max_length=files.spec.max_length,
        generation_defaults=defaults,
        warnings=(*warnings, *(Warning("config.model_path", text) for text in files.warnings)),
    )
    return Prepared(files, TextProcessor(bundle, config.chat_template), effective)


def describe(config: RuntimeConfig, options: EngineOptions) -> ModelDescription:
    """What lies at a path.

    Raises:
        BadModel: nothing that could be described.
    """
    files = _open(config, options)
    refusal: HeadraceError | None = None
    try:
        load_tokenizer(files)
    except HeadraceError as error:
        refusal = error
    defaults, _ = model_defaults(files.generation, files.eos_ids)
    spec = files.spec
    return ModelDescription(
        format=files.format,
        architecture=spec.architecture,
        config_json=files.config_json,
        generation_config=defaults,
        max_length=spec.max_length,
        vocab_size=spec.vocab_size,
        num_parameters=files.num_parameters,
        weight_bytes=files.weight_bytes,
        kv_bytes_per_token=2 * spec.num_layers * spec.kv_width * files.bytes_per_value,
        resolved_revision=files.revision,
        chat_template=files.chat_template,
        refusal=refusal,
    )


def _open(config: RuntimeConfig, options: EngineOptions) -> ModelFiles:
    if not options.allow_hub and config.hub:
        raise InvalidArgument.field("config.hub", f"= {config.hub!r}: this engine uses no hub")
    return open_model(
        config.model_path,
        format=config.format or ModelFormat.AUTO,
        file_prefix=config.file_prefix,
        revision=config.revision,
        hub=config.hub,
    )


def _check_length(config: RuntimeConfig, files: ModelFiles) -> None:
    limit = files.spec.max_length
    stretched = config.rope_scaling is not None
    if config.max_length is not None and config.max_length > limit and not stretched:
        text = f"= {config.max_length} is more than the model was made for ({limit} tokens)"
        raise InvalidArgument.field("config.max_length", f"{text}; set rope_scaling to stretch it")
    if limit < 2:
        raise BadModel(f"the model takes sequences of {limit} token(s); at least 2 are needed")
