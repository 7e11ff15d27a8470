"""Rotary scaling as in config files and in GGUF metadata."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.config import RopeScalingType
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.spec import RopeSpec

DEFAULT_THETA = 10_000.0
_SUPPORTED = "default, linear, llama3"


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
