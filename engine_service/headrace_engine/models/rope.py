"""Rotary scaling: as in config files, as in GGUF metadata, and as overridden by callers."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace

from headrace_engine.config import RopeScaling, RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.config_fields import INT32, ConfigFields
from headrace_engine.models.spec import DecoderSpec, RopeSpec

DEFAULT_THETA = 10_000.0
_SUPPORTED = "default, linear, llama3"
_USED_FACTORS = {
    RopeScalingType.MODEL: frozenset[str](),
    RopeScalingType.LINEAR: frozenset({"factor"}),
    RopeScalingType.LLAMA3: frozenset({"factor", "original_max_length", "low_freq_factor", "high_freq_factor"}),
}


def rope_from_config(config: ConfigFields, head_dim: int, max_length: int) -> RopeSpec:
    """Read the rotary embedding from a config.json.

    Scaling is in `rope_scaling`, next to `rope_theta`, or in `rope_parameters` together with it; its type is in
    `rope_type` or `type`.

    Raises:
        BadModel: the type is unknown or not supported, or a factor is absent; names the field.
    """
    scaling = _scaling_table(config)
    theta = config.number("rope_theta", DEFAULT_THETA)
    _check_partial(config)
    if scaling is None:
        return RopeSpec(theta=theta, dim=head_dim)
    _check_partial(scaling)
    base = RopeSpec(theta=scaling.number("rope_theta", theta), dim=head_dim)
    kind = _scaling_type(scaling)
    if kind == "default":
        return base
    if kind == "linear":
        return replace(base, scaling=RopeScalingType.LINEAR, factor=scaling.number("factor", minimum=1))
    if kind == "llama3":
        return _llama3(base, scaling, config.integer("original_max_position_embeddings", max_length))
    raise scaling.error(_type_name(scaling), f"is not supported; supported are {_SUPPORTED}")


def rope_from_metadata(metadata: ConfigFields, head_dim: int, factors: tuple[float, ...]) -> RopeSpec:
    """Read the rotary embedding from GGUF metadata.

    Args:
        factors: divisors of the inverse frequencies from the file's rope_freqs tensor; empty if it has none.

    Raises:
        BadModel: the scaling type is unknown or not supported, or a factor is absent; names the field.
    """
    dim = metadata.integer("rope.dimension_count", head_dim)
    if dim != head_dim:
        raise metadata.error("rope.dimension_count", f"must be the head's size, {head_dim}")
    base = RopeSpec(theta=metadata.number("rope.freq_base", DEFAULT_THETA), dim=dim)
    factor = _linear_factor(metadata)
    if factors:
        return replace(base, frequency_factors=tuple(value * factor for value in factors))
    return base if factor == 1 else replace(base, scaling=RopeScalingType.LINEAR, factor=factor)


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
        rope = RopeSpec(theta=spec.rope.theta, dim=spec.rope.dim, scaling=kind, factor=factor)
        return replace(spec, rope=rope, max_length=max(spec.max_length, _stretched(_trained_length(spec), factor)))
    rope = _overridden_llama3(spec, scaling, factor)
    return replace(spec, rope=rope, max_length=max(spec.max_length, _stretched(rope.original_max_length, factor)))


def _scaling_table(config: ConfigFields) -> ConfigFields | None:
    scaling, parameters = config.table("rope_scaling"), config.table("rope_parameters")
    if scaling and parameters and config.get("rope_scaling") != config.get("rope_parameters"):
        raise config.error("rope_scaling", "contradicts rope_parameters")
    return scaling or parameters


def _type_name(scaling: ConfigFields) -> str:
    return "type" if scaling.get("rope_type") is None and scaling.get("type") is not None else "rope_type"


def _scaling_type(scaling: ConfigFields) -> str:
    name = _type_name(scaling)
    kind = scaling.text(name, "default")
    other = scaling.get("type")
    if other is not None and other != kind:
        raise scaling.error("type", f"contradicts rope_type = {kind!r}")
    if kind == "default" and scaling.get("factor") not in (None, 1, 1.0):
        raise scaling.error(name, f"names no scaling that takes the factor {scaling.get('factor')!r}")
    return kind


def _llama3(base: RopeSpec, scaling: ConfigFields, original: int) -> RopeSpec:
    low = scaling.number("low_freq_factor")
    high = scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.error("high_freq_factor", f"must be above low_freq_factor, {low:g}")
    return replace(
        base,
        scaling=RopeScalingType.LLAMA3,
        factor=scaling.number("factor", minimum=1),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_length=scaling.integer("original_max_position_embeddings", original),
    )


def _check_partial(config: ConfigFields) -> None:
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise config.error("partial_rotary_factor", "is not supported for this architecture")


def _linear_factor(metadata: ConfigFields) -> float:
    legacy = metadata.get("rope.scale_linear")
    name = "rope.scaling.factor" if legacy is None else "rope.scale_linear"
    kind = metadata.text("rope.scaling.type", "none" if metadata.get(name) is None else "linear")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise metadata.error("rope.scaling.type", "is not supported; supported are none, linear")
    return metadata.number(name, minimum=1)


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
    if spec.rope.scaling is RopeScalingType.LLAMA3:
        return spec.rope.original_max_length
    if spec.rope.scaling is RopeScalingType.LINEAR:
        return int(spec.max_length / spec.rope.factor)
    return spec.max_length


def _overridden_llama3(spec: DecoderSpec, scaling: RopeScaling, factor: float) -> RopeSpec:
    """Return the override; factors left unset are the model's own if it has this scaling, else 1 and 4."""
    old = spec.rope
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
