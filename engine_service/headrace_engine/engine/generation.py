"""From the generation config that a caller sent to the one that holds: defaults, ranges, and the length rules."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace_engine.config import GenerationConfig, SamplingParams
from headrace_engine.engine.fields import GENERATION, check, honoured, is_set, refuse
from headrace_engine.errors import BadModel, FieldViolation, InvalidArgument
from headrace_engine.types import Warning

_NOT_TAKEN = {"early_stopping", "num_beams", "length_penalty"}
"""Fields of a model's generation_config.json that speak of beam search."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model allows, for one prompt."""

    model_name: str
    vocab_size: int
    max_length: int
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation config with every choice made.

    Attributes:
        effective: the config with every field set that has a value.
        eos_ids: ids that end the request; none where EOS does not.
        max_new: tokens after which it ends.
        min_new: tokens before which EOS cannot end it.
    """

    effective: GenerationConfig
    sampling: SamplingParams
    eos_ids: tuple[int, ...]
    max_new: int
    min_new: int
    warnings: tuple[Warning, ...]


def model_defaults(raw: Mapping[str, Any], eos_ids: tuple[int, ...]) -> tuple[GenerationConfig, tuple[Warning, ...]]:
    """The defaults that a model's own generation_config.json sets, and what of it this build does not honour.

    Raises:
        BadModel: a value is of the wrong kind or out of range; names the field.
    """
    taken: dict[str, Any] = {}
    warnings = []
    for name, field in GENERATION.items():
        value = raw.get(name)
        if name in _NOT_TAKEN or name == "eos_token_id" or not is_set(value):
            continue
        value = _typed(name, value)
        violation = field.violation(value)
        if violation:
            raise BadModel(f"generation_config.json: {name} {violation}")
        if honoured(field, value):
            taken[name] = value
        else:
            text = f"{name} = {value} of the model's generation_config.json is not supported by this build and not applied"
            warnings.append(Warning(f"config.{name}", text))
    return GenerationConfig(eos_token_id=eos_ids, **taken), tuple(warnings)


def _typed(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    default = GENERATION[name].default
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and type(value) is not type(default):
        raise BadModel(f"generation_config.json: {name} = {value!r} is not a {type(default).__name__}")
    return value


def resolve(
    sent: GenerationConfig, defaults: GenerationConfig, limits: Limits, default_seed: int | None
) -> Generation:
    """Join what a caller sent with the model's defaults and ours, and check it all.

    Raises:
        InvalidArgument: naming field, value and range.
    """
    check(sent, GENERATION, "config.")
    check_ids("config.eos_token_id", sent.eos_token_id, limits.vocab_size)
    _check_eos_switches(sent)
    joined = _join(sent, defaults)
    max_length, max_new = _upper_lengths(sent, defaults, limits)
    min_new = _lower_length(joined, limits, max_length, max_new)
    stops_at_eos = joined.early_stopping if sent.ignore_eos is None else not sent.ignore_eos
    effective = replace(
        joined,
        early_stopping=stops_at_eos,
        ignore_eos=not stops_at_eos,
        seed=_first(sent.seed, default_seed, secrets.randbits(64)),
        max_length=max_length,
        max_new_tokens=_first(sent.max_new_tokens, max_new if defaults.max_new_tokens else None),
        best_of=_first(sent.best_of, joined.n),
    )
    return Generation(
        effective=effective,
        sampling=_sampling(effective),
        eos_ids=effective.eos_token_id if stops_at_eos else (),
        max_new=max_new,
        min_new=min_new,
        warnings=_suspicions(sent, effective),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _join(sent: GenerationConfig, defaults: GenerationConfig) -> GenerationConfig:
    values = {}
    for field in fields(GenerationConfig):
        own, model = getattr(sent, field.name), getattr(defaults, field.name)
        if is_set(own):
            values[field.name] = own
        elif is_set(model):
            values[field.name] = model
        elif GENERATION[field.name].default is not None:
            values[field.name] = GENERATION[field.name].default
    return GenerationConfig(**values)


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the model does not have.

    Raises:
        InvalidArgument: naming the first such id and the range.
    """
    outside = [id_ for id_ in ids if not 0 <= id_ < vocab_size]
    if outside:
        raise InvalidArgument.field(field, f"holds {outside[0]}, which is no id: ids are 0 to {vocab_size - 1}")


def _check_eos_switches(sent: GenerationConfig) -> None:
    if sent.early_stopping is not None and sent.early_stopping == sent.ignore_eos:
        text = f"= {sent.ignore_eos} contradicts early_stopping = {sent.early_stopping}: set one of them"
        raise InvalidArgument.field("config.ignore_eos", text)


def check_prompt(ids: Sequence[int], vocab_size: int, max_length: int, model_name: str) -> None:
    """Refuse a prompt that is empty, holds ids that are none, or leaves no room for one token.

    Raises:
        InvalidArgument: with the numbers.
    """
    if not ids:
        raise InvalidArgument.field("prompt", "is empty: send at least one token")
    check_ids("prompt", ids, vocab_size)
    if len(ids) > max_length - 1:
        raise InvalidArgument.field(
            "prompt",
            f"has {len(ids)} tokens; model {model_name!r} takes at most {max_length - 1} (max_length {max_length})",
            reason="PROMPT_TOO_LONG",
        )


def _upper_lengths(sent: GenerationConfig, defaults: GenerationConfig, limits: Limits) -> tuple[int, int]:
    """The effective max_length, and the tokens that may be generated."""
    engine, prompt = limits.max_length, limits.prompt_length
    if sent.max_length is not None and sent.max_length > engine:
        text = f"= {sent.max_length} is out of range; allowed: 1 to {engine} (max_length of model {limits.model_name!r})"
        raise InvalidArgument.field("config.max_length", text)
    max_length = sent.max_length or min(defaults.max_length or engine, engine)
    if max_length <= prompt:
        text = f"= {max_length} leaves no room: the prompt has {prompt} tokens, so at least {prompt + 1} is needed"
        raise InvalidArgument.field("config.max_length", text, reason="PROMPT_TOO_LONG")
    room = engine - prompt
    if sent.max_new_tokens is not None and sent.max_new_tokens > room:
        text = (
            f"= {sent.max_new_tokens} does not fit: prompt {prompt} + {sent.max_new_tokens} > max_length {engine} of "
            f"model {limits.model_name!r}. Ask for at most {room}, or install the model with a larger max_length"
        )
        raise InvalidArgument.field("config.max_new_tokens", text)
    wanted = sent.max_new_tokens or defaults.max_new_tokens or room
    return max_length, min(wanted, max_length - prompt)


def _lower_length(joined: GenerationConfig, limits: Limits, max_length: int, max_new: int) -> int:
    by_total = max(0, (joined.min_length or 0) - limits.prompt_length)
    min_new = max(by_total, joined.min_new_tokens or 0)
    if min_new > max_new:
        name = "min_length" if by_total == min_new else "min_new_tokens"
        text = (
            f"= {getattr(joined, name)} cannot be reached: prompt {limits.prompt_length} + {min_new} new tokens, but "
            f"max_length {max_length} and max_new_tokens allow {max_new} new tokens"
        )
        refuse([FieldViolation(f"config.{name}", text)])
    return min_new


def _sampling(config: GenerationConfig) -> SamplingParams:
    greedy = not config.do_sample or config.temperature == 0 or config.top_k == 1
    if greedy:
        return SamplingParams(temperature=0.0, seed=config.seed or 0, logprobs=bool(config.logprobs))
    return SamplingParams(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_k=config.top_k or 0,
        top_p=1.0 if config.top_p is None else config.top_p,
        min_p=config.min_p or 0.0,
        seed=config.seed or 0,
        logprobs=bool(config.logprobs),
    )


def _suspicions(sent: GenerationConfig, effective: GenerationConfig) -> tuple[Warning, ...]:
    """Fields that were sent and have no effect."""
    greedy = not effective.do_sample or effective.temperature == 0 or effective.top_k == 1
    unused = [name for name in ("temperature", "top_p", "min_p", "seed") if is_set(getattr(sent, name))]
    if not greedy or not unused:
        return ()
    cause = "do_sample = false" if not effective.do_sample else "greedy decoding"
    return tuple(
        Warning(f"config.{name}", f"{name} has no effect with {cause}")
        for name in unused
        if not (name == "temperature" and sent.temperature == 0)
    )
