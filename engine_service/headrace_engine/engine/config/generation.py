"""Resolve the generation config of a request: defaults, ranges, and the length rules."""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import NoReturn

from headrace_engine.engine.config.beam_fields import with_beams
from headrace_engine.engine.config.field_checks import check, check_ids, is_set, refuse
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.engine.config.lease_fields import lease_violations, resolved_lease
from headrace_engine.engine.config.logit_rules import check_logit_fields
from headrace_engine.engine.config.stop_fields import check_stop_fields
from headrace_engine.engine.config.warnings import CheckedConfig, config_warnings, greedy_by
from headrace_engine.errors import FieldViolation, InvalidArgument, quoted
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import ConfigWarning
from headrace_engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a model, for one prompt.

    Attributes:
        holes: ids below vocab_size that the tokenizer does not define.
        max_lease: maximum lease, in seconds.
        caching: the model has a prefix cache.
    """

    model_name: str
    vocab_size: int
    max_length: int
    prompt_length: int
    max_lease: float = math.inf
    caching: bool = True
    holes: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """A resolved generation config.

    Attributes:
        effective: the config with every field set that has a value.
        eos_ids: ids that end a sequence; empty if EOS is ignored.
        max_new: maximum number of generated tokens.
        min_new: number of generated tokens before which neither EOS nor a stop ends the sequence.
    """

    effective: GenerationConfig
    sampling: SamplingParams
    eos_ids: tuple[int, ...]
    max_new: int
    min_new: int
    warnings: tuple[ConfigWarning, ...]


def resolve(sent: GenerationConfig, defaults: GenerationConfig, limits: Limits, default_seed: int | None) -> Generation:
    """Merge the config of a request with the model's defaults and ours, and check it.

    Args:
        defaults: defaults from the model's own files, and the model's lease.
        default_seed: seed of requests without one; None: random.

    Raises:
        InvalidArgument: naming field, value and range.
    """
    check(sent, GENERATION, "config.")
    refuse(lease_violations(sent.lease, limits.max_lease, "config.lease"))
    check_ids("config.eos_token_id", sent.eos_token_id, limits.vocab_size, limits.holes)
    check_logit_fields(sent, limits.vocab_size, limits.holes)
    check_stop_fields(sent, limits.vocab_size, limits.holes)
    _check_eos_switches(sent)
    max_length, max_new = _upper_lengths(sent, defaults, limits)
    joined = with_beams(sent, _join(sent, _lowered(defaults, limits.prompt_length, max_new)))
    _check_top_logprobs(joined)
    _check_candidates(sent, joined.n or 1)
    min_new = _lower_length(joined, limits, max_length, max_new)
    stops_at_eos = not joined.ignore_eos if sent.early_stopping is None else sent.early_stopping
    effective = replace(
        joined,
        early_stopping=stops_at_eos,
        ignore_eos=not stops_at_eos,
        seed=_first(sent.seed, default_seed, defaults.seed, secrets.randbits(64)),
        max_length=max_length,
        max_new_tokens=_first(sent.max_new_tokens, None if defaults.max_new_tokens is None else max_new),
        best_of=_first(sent.best_of, joined.n),
        lease=resolved_lease(sent.lease, defaults.lease, limits.max_lease),
    )
    return Generation(
        effective=effective,
        sampling=_sampling(effective),
        eos_ids=effective.eos_token_id if stops_at_eos else (),
        max_new=max_new,
        min_new=min_new,
        warnings=config_warnings(
            CheckedConfig(sent, effective, limits.vocab_size, max_length - limits.prompt_length, limits.caching)
        ),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def filled(defaults: GenerationConfig) -> GenerationConfig:
    """Return the config of a request that sets nothing: the model's defaults, else ours."""
    return _join(GenerationConfig(), defaults)


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


def _check_eos_switches(sent: GenerationConfig) -> None:
    if sent.early_stopping is not None and sent.early_stopping == sent.ignore_eos:
        text = f"= {sent.ignore_eos} contradicts early_stopping = {sent.early_stopping}: set one of them"
        _refuse("ignore_eos", text)


def _check_top_logprobs(joined: GenerationConfig) -> None:
    if joined.top_logprobs and not joined.logprobs:
        _refuse("top_logprobs", f"= {joined.top_logprobs} needs logprobs = True")


def _check_candidates(sent: GenerationConfig, n: int) -> None:
    best_of = sent.best_of or n
    if best_of < n:
        _refuse("best_of", f"= {best_of} is less than n = {n}")
    if best_of == n and (sent.num_beams or 1) == 1 and sent.length_penalty not in (None, 1.0):
        text = f"= {sent.length_penalty:g} needs candidates to rank: best_of above n, which is {n}, or num_beams"
        _refuse("length_penalty", text)


def has_candidates(config: GenerationConfig) -> bool:
    """True if more sequences are generated than returned."""
    return (config.best_of or 1) > (config.n or 1)


def check_prompt(
    ids: Sequence[int], vocab_size: int, max_length: int, model_name: str, holes: Collection[int] = ()
) -> None:
    """Refuse a prompt that is empty, contains invalid ids, or leaves no context length for a generated token.

    Raises:
        InvalidArgument: with the numbers.
    """
    check_prompt_length(ids, max_length, model_name)
    check_ids("prompt", ids, vocab_size, holes)


def check_prompt_length(ids: Sequence[int], max_length: int, model_name: str) -> None:
    """Refuse a prompt that is empty, or leaves no context length for a generated token, whatever its ids are.

    Raises:
        InvalidArgument: with the numbers.
    """
    if not ids:
        raise InvalidArgument.field("prompt", "is empty: send at least one token")
    if len(ids) > max_length - 1:
        raise InvalidArgument.field(
            "prompt",
            f"has {len(ids)} tokens; model {quoted(model_name)} takes at most {max_length - 1} "
            f"(max_length {max_length})",
            reason="PROMPT_TOO_LONG",
        )


def _upper_lengths(sent: GenerationConfig, defaults: GenerationConfig, limits: Limits) -> tuple[int, int]:
    """Return the effective max_length, and the maximum number of generated tokens."""
    engine, prompt, owner = limits.max_length, limits.prompt_length, f"max_length {limits.max_length} of model"
    if sent.max_length is not None and sent.max_length > engine:
        text = f"allowed: 1 to {engine} ({owner} {quoted(limits.model_name)}); the prompt has {prompt} tokens"
        _refuse("max_length", f"= {sent.max_length} is out of range; {text}")
    max_length = sent.max_length or min(defaults.max_length or engine, engine)
    if max_length <= prompt:
        text = f"leaves no room: the prompt has {prompt} tokens, so at least {prompt + 1} is needed"
        _refuse("max_length", f"= {max_length} {text}", "PROMPT_TOO_LONG")
    left = engine - prompt
    wanted = sent.max_new_tokens or defaults.max_new_tokens or left
    return max_length, min(wanted, max_length - prompt)


def _lowered(defaults: GenerationConfig, prompt_length: int, max_new: int) -> GenerationConfig:
    """Return the model's defaults, with minima lowered to what this request can reach."""
    return replace(
        defaults,
        min_length=min(defaults.min_length or 0, prompt_length + max_new),
        min_new_tokens=min(defaults.min_new_tokens or 0, max_new),
    )


def _lower_length(joined: GenerationConfig, limits: Limits, max_length: int, max_new: int) -> int:
    by_total = max(0, (joined.min_length or 0) - limits.prompt_length)
    min_new = max(by_total, joined.min_new_tokens or 0)
    if min_new > max_new:
        name = "min_length" if by_total == min_new else "min_new_tokens"
        text = (
            f"= {getattr(joined, name)} cannot be reached: prompt {limits.prompt_length} + {min_new} new tokens, but "
            f"max_length {max_length} and max_new_tokens allow {max_new} new tokens"
        )
        _refuse(name, text)
    return min_new


def _refuse(name: str, text: str, reason: str = "INVALID_FIELD") -> NoReturn:
    raise InvalidArgument(f"{name} {text}", reason=reason, violations=[FieldViolation(f"config.{name}", text)])


def _sampling(config: GenerationConfig) -> SamplingParams:
    """Return the sampling parameters for the core: each is the config's field of that name, if set."""
    given = {field.name: getattr(config, field.name) for field in fields(SamplingParams)}
    given["logprobs"] = bool(config.logprobs) or has_candidates(config)  # Candidates are ranked by them.
    sampling = SamplingParams(**{name: value for name, value in given.items() if value is not None})
    if greedy_by(config) is None:
        return sampling
    return SamplingParams(0.0, seed=sampling.seed, logprobs=sampling.logprobs, top_logprobs=sampling.top_logprobs)
