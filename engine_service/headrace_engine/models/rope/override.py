"""Rotary scaling as overridden by callers."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace

from headrace_engine.config import RopeScaling, RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.config_fields import INT32, LEAST_NUMBER, MOST_NUMBER
from headrace_engine.models.rope.reading import yarn_attention_factor
from headrace_engine.models.spec import DecoderSpec, RopeSpec

_USED_FACTORS = {
    RopeScalingType.MODEL: frozenset[str](),
    RopeScalingType.LINEAR: frozenset({"factor"}),
    RopeScalingType.DYNAMIC: frozenset({"factor", "original_max_length"}),
    RopeScalingType.YARN: frozenset({"factor", "original_max_length", "attention_factor", "beta_fast", "beta_slow"}),
    RopeScalingType.LLAMA3: frozenset({"factor", "original_max_length", "low_freq_factor", "high_freq_factor"}),
}


def apply_rope_scaling(spec: DecoderSpec, scaling: RopeScaling) -> DecoderSpec:
    """Return the spec with another rotary scaling; the factor extends `max_length` too.

    Of a decoder with several rotary embeddings, the first is scaled, that of layers without a window.

    Raises:
        InvalidArgument: a factor is absent, out of range, or set without being used; or the model's own scaling is a
            part of the scale of its scores too.
    """
    kind = scaling.type or RopeScalingType.MODEL
    _check_unused(kind, scaling)
    if kind is RopeScalingType.MODEL:
        return spec
    if spec.latent is not None and spec.latent.scores_scaled_by:
        why = f"{spec.latent.scores_scaled_by} of its own scaling scales its scores of attention too"
        text = f"of type {kind} is not supported for this model: {why}; leave config.rope_scaling unset"
        raise InvalidArgument.unsupported("config.rope_scaling", text)
    factor = _required_factor(kind, scaling)
    rope = _overridden(spec, kind, scaling, factor)
    length = _stretched(rope.original_max_length or _trained_length(spec), factor)
    return replace(spec, ropes=(rope, *spec.ropes[1:]), max_length=max(spec.max_length, length))


def _overridden(spec: DecoderSpec, kind: RopeScalingType, scaling: RopeScaling, factor: float) -> RopeSpec:
    base = RopeSpec(theta=spec.ropes[0].theta, dim=spec.rotary_dim, scaling=kind, factor=factor)
    if kind is RopeScalingType.LINEAR:
        return base
    base = replace(base, original_max_length=_original_length(spec, scaling))
    if kind is RopeScalingType.LLAMA3:
        return _llama3(spec.ropes[0], base, scaling)
    if kind is RopeScalingType.YARN:
        return _yarn(spec.ropes[0], base, scaling)
    if base.dim < 4:
        text = f"= {kind} needs 4 entries of a head that rotate; {spec.architecture} has {base.dim}"
        raise InvalidArgument.field("config.rope_scaling.type", text)
    return base


def _check_unused(kind: RopeScalingType, scaling: RopeScaling) -> None:
    for field in dataclass_fields(scaling):
        value = getattr(scaling, field.name)
        if field.name != "type" and value is not None and field.name not in _USED_FACTORS[kind]:
            text = f"= {value} is not used by type {kind}: leave it unset"
            raise InvalidArgument.field(f"config.rope_scaling.{field.name}", text)


def _required_factor(kind: RopeScalingType, scaling: RopeScaling) -> float:
    if scaling.factor is None:
        raise InvalidArgument.field("config.rope_scaling.factor", f"is needed by type {kind}: at least 1")
    if not 1 <= scaling.factor < float("inf"):
        raise InvalidArgument.field("config.rope_scaling.factor", f"= {scaling.factor} must be at least 1 and finite")
    return scaling.factor


def _stretched(length: int, factor: float) -> int:
    stretched = length * factor
    if stretched > INT32:
        text = f"= {factor:g} stretches {length} positions to {stretched:g}; allowed: at most {INT32} positions"
        raise InvalidArgument.field("config.rope_scaling.factor", text)
    return int(stretched)


def _trained_length(spec: DecoderSpec) -> int:
    """Return the maximum length before the scaling in the model's own files."""
    rope = spec.ropes[0]
    if rope.scaling is RopeScalingType.LINEAR:
        return int(spec.max_length / rope.factor)
    return rope.original_max_length or spec.max_length


def _original_length(spec: DecoderSpec, scaling: RopeScaling) -> int:
    original = scaling.original_max_length
    if original is not None and not 1 <= original <= INT32:
        text = f"= {original} is out of range; allowed: at least 1, at most {INT32}"
        raise InvalidArgument.field("config.rope_scaling.original_max_length", text)
    return original or _trained_length(spec)


def _llama3(old: RopeSpec, base: RopeSpec, scaling: RopeScaling) -> RopeSpec:
    """Return the override; factors left unset are the model's own if it has this scaling, else 1 and 4."""
    low = scaling.low_freq_factor if scaling.low_freq_factor is not None else old.low_freq_factor
    high = scaling.high_freq_factor if scaling.high_freq_factor is not None else old.high_freq_factor
    if not LEAST_NUMBER <= low < high <= MOST_NUMBER:
        allowed = f"above low_freq_factor = {low:g}, and both from {LEAST_NUMBER:g} to {MOST_NUMBER:g}"
        text = f"= {high:g} is out of range; allowed: {allowed}"
        raise InvalidArgument.field("config.rope_scaling.high_freq_factor", text)
    return replace(base, low_freq_factor=low, high_freq_factor=high)


def _yarn(old: RopeSpec, base: RopeSpec, scaling: RopeScaling) -> RopeSpec:
    """Return the override; rotations left unset are the model's own if it has this scaling, else 32 and 1."""
    if base.theta <= 1:
        text = f"= {RopeScalingType.YARN} needs a rope_theta above 1; that of the model is {base.theta:g}"
        raise InvalidArgument.field("config.rope_scaling.type", text)
    fast = scaling.beta_fast if scaling.beta_fast is not None else old.beta_fast
    slow = scaling.beta_slow if scaling.beta_slow is not None else old.beta_slow
    attention = scaling.attention_factor
    attention = yarn_attention_factor(base.factor) if attention is None else attention
    for name, value in (("beta_fast", fast), ("beta_slow", slow), ("attention_factor", attention)):
        if not LEAST_NUMBER <= value <= MOST_NUMBER:
            text = f"= {value:g} is out of range; allowed: {LEAST_NUMBER:g} to {MOST_NUMBER:g}"
            raise InvalidArgument.field(f"config.rope_scaling.{name}", text)
    return replace(base, beta_fast=fast, beta_slow=slow, truncate=old.truncate, attention_factor=attention)
