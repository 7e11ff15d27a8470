"""Rotary scaling as overridden by callers."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace

from headrace_engine.config import RopeScaling, RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.config_fields import INT32
from headrace_engine.models.spec import DecoderSpec, RopeSpec

_USED_FACTORS = {
    RopeScalingType.MODEL: frozenset[str](),
    RopeScalingType.LINEAR: frozenset({"factor"}),
    RopeScalingType.LLAMA3: frozenset({"factor", "original_max_length", "low_freq_factor", "high_freq_factor"}),
}


def apply_rope_scaling(spec: DecoderSpec, scaling: RopeScaling) -> DecoderSpec:
    """Return the spec with another rotary scaling; the factor extends `max_length` too.

    Raises:
        InvalidArgument: the type is not supported yet, a factor is absent or out of range, or set without being used.
    """
    kind = scaling.type or RopeScalingType.MODEL
    if kind not in _USED_FACTORS:
        text = f"= {kind} is not supported yet; supported are {', '.join(_USED_FACTORS)}"
        raise InvalidArgument.unsupported("config.rope_scaling.type", text)
    _check_unused(kind, scaling)
    if kind is RopeScalingType.MODEL:
        return spec
    factor = _required_factor(kind, scaling)
    if kind is RopeScalingType.LINEAR:
        rope = RopeSpec(theta=spec.ropes[0].theta, dim=spec.ropes[0].dim, scaling=kind, factor=factor)
        return replace(spec, ropes=(rope,), max_length=max(spec.max_length, _stretched(_trained_length(spec), factor)))
    rope = _overridden_llama3(spec, scaling, factor)
    return replace(spec, ropes=(rope,), max_length=max(spec.max_length, _stretched(rope.original_max_length, factor)))


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
    if spec.ropes[0].scaling is RopeScalingType.LLAMA3:
        return spec.ropes[0].original_max_length
    if spec.ropes[0].scaling is RopeScalingType.LINEAR:
        return int(spec.max_length / spec.ropes[0].factor)
    return spec.max_length


def _overridden_llama3(spec: DecoderSpec, scaling: RopeScaling, factor: float) -> RopeSpec:
    """Return the override; factors left unset are the model's own if it has this scaling, else 1 and 4."""
    old = spec.ropes[0]
    low = scaling.low_freq_factor if scaling.low_freq_factor is not None else old.low_freq_factor
    high = scaling.high_freq_factor if scaling.high_freq_factor is not None else old.high_freq_factor
    if not 0 < low < high < float("inf"):
        text = f"= {high:g} must be finite and above low_freq_factor = {low:g}, which must be above 0"
        raise InvalidArgument.field("config.rope_scaling.high_freq_factor", text)
    original = scaling.original_max_length
    if original is not None and not 1 <= original <= INT32:
        text = f"= {original} is out of range; allowed: at least 1, at most {INT32}"
        raise InvalidArgument.field("config.rope_scaling.original_max_length", text)
    return RopeSpec(
        theta=old.theta,
        dim=old.dim,
        scaling=RopeScalingType.LLAMA3,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_length=original or _trained_length(spec),
    )
