"""Generation defaults from a model's own generation_config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from headrace_engine.engine.config.field_checks import NOT_YET, check_ids, honoured, is_set
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.engine.config.stop_fields import check_stop_fields
from headrace_engine.errors import BadModel, InvalidArgument, shown
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import ConfigWarning

_NOT_TAKEN = frozenset({
    "early_stopping", "num_beams", "beam_stopping", "length_penalty", "eos_token_id", "lease", "interrupt_policy",
    "response_format",
})  # fmt: skip
"""Fields of beam search, the one that is read with the tokenizer, and those that a model does not decide."""

_UNKNOWN = {
    "begin_suppress_tokens": None,
    "constraints": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "num_return_sequences": 1,
    "penalty_alpha": 0.0,
    "response_format": None,
    "sequence_bias": None,
    "token_healing": False,
    "top_h": 1.0,
    "typical_p": 1.0,
    "watermarking_config": None,
}
"""Other fields of such files that change what is generated, with their neutral values."""


def model_defaults(
    raw: Mapping[str, Any], eos_ids: tuple[int, ...]
) -> tuple[GenerationConfig, tuple[ConfigWarning, ...]]:
    """Return the defaults that a model's files set, and warnings about those that this build does not support.

    Args:
        raw: contents of generation_config.json.
        eos_ids: ids that end a sequence.

    Raises:
        BadModel: a value is of the wrong type or out of range; names the field.
    """
    taken: dict[str, Any] = {}
    left = {name: raw[name] for name, neutral in _UNKNOWN.items() if raw.get(name) not in (None, neutral)}
    raw = _renamed(raw)
    for name in GENERATION:
        if name in _NOT_TAKEN or not is_set(_frozen(raw.get(name))):
            continue
        value = _checked(name, raw[name])
        if honoured(GENERATION[name], value):
            taken[name] = value
        else:
            left[name] = raw[name]
    return GenerationConfig(eos_token_id=eos_ids, **taken), tuple(_not_applied(*item) for item in left.items())


def check_default_ids(defaults: GenerationConfig, vocab_size: int, holes: Collection[int] = ()) -> None:
    """Refuse defaults with ids that the model does not have, and empty stops.

    Raises:
        BadModel: naming the field.
    """
    try:
        check_stop_fields(defaults, vocab_size, holes)
        for name in ("allowed_token_ids", "logit_bias"):
            check_ids(name, tuple(getattr(defaults, name)), vocab_size, holes)
    except InvalidArgument as error:
        raise BadModel(f"generation_config.json: {error.message.removeprefix('config.')}") from error


def _renamed(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the values of fields that have another name in transformers to ours."""
    strings, suppressed = raw.get("stop_strings"), raw.get("suppress_tokens")
    strings = [strings] if isinstance(strings, str) else strings
    suppressed = [[token] for token in suppressed] if isinstance(suppressed, list) else suppressed
    named = {"stop_words": strings, "bad_words_ids": suppressed}
    return {**raw, **{name: _both(raw.get(name), value) for name, value in named.items() if is_set(value)}}


def _both(ours: Any, theirs: Any) -> Any:
    return ours + theirs if isinstance(ours, list) and isinstance(theirs, list) else theirs


def _not_applied(name: str, value: Any) -> ConfigWarning:
    text = f"{name} = {shown(value)} of the model's generation_config.json {NOT_YET}, and not applied"
    return ConfigWarning(f"config.{name}", text)


def _checked(name: str, value: Any) -> Any:
    value = _typed(name, value)
    violation = GENERATION[name].violation(value)
    if violation:
        raise BadModel(f"generation_config.json: {name} {violation}")
    return value


def _typed(name: str, value: Any) -> Any:
    """Convert a JSON value to the type of its field."""
    kind = _KINDS[name]
    if kind is float and type(value) is int:
        return float(value)
    if kind in (bool, int, float, str) and type(value) is not kind:
        raise BadModel(f"generation_config.json: {name} = {shown(value)} is not a {kind.__name__}")
    return _entries(name, value) if kind in (tuple, Mapping) and name != "mm_info" else _frozen(value)


def _entries(name: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, _HINTS[name], str_keys=True)
    except msgspec.ValidationError as error:
        raise BadModel(f"generation_config.json: {name}: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _kind(hint: Any) -> Any:
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind = next(member for member in members if member is not NoneType)
    return get_origin(kind) or kind


_HINTS = get_type_hints(GenerationConfig)
_KINDS = {name: _kind(hint) for name, hint in _HINTS.items()}
