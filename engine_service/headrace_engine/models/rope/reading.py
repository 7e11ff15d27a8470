"""Rotary embedding as in config files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace_engine.config import RopeScalingType
from headrace_engine.models.config_fields import MOST_NUMBER, ConfigFields
from headrace_engine.models.spec import RopeSpec

DEFAULT_THETA = 10_000.0

MOST_MSCALE = 1e18
"""Maximum of YaRN's mscale and mscale_all_dim: what any factor makes of them, and its square, is in float32."""

LEAST_FACTOR = 2.0**-96
"""Least divisor of an inverse frequency: the angle of the last of 2³¹ positions is then a number of float32."""


def rope_from_config(
    config: ConfigFields,
    head_dim: int,
    max_length: int,
    *,
    theta: float = DEFAULT_THETA,
    rotating: float | None = None,
    layer_type: str = "",
) -> RopeSpec:
    """Read the rotary embedding from a config.json.

    Scaling is in `rope_scaling`, next to `rope_theta`, or in `rope_parameters` together with it; its type is in
    `rope_type` or `type`.

    Args:
        theta: base where the config names none.
        rotating: share of a head that rotates where the config names none; None: all of it in every model.
        layer_type: type of the layers, for configs whose `rope_parameters` has an object for each; "" has none.

    Raises:
        BadModel: the type is unknown or not supported, or a factor is absent; names the field.
    """
    scaling = scaling_table(config, layer_type)
    theta = config.number("rope_theta", theta, minimum=1)
    base = RopeSpec(theta, _rotary_dim(config, scaling, head_dim, rotating))
    if scaling is None:
        return base
    base = replace(base, theta=scaling.number("rope_theta", theta, minimum=1))
    kind = scaling_type(scaling)
    if kind not in _READERS:
        raise scaling.error(
            scaling_type_name(scaling), f"is not supported; supported are {', '.join(sorted(_READERS))}"
        )
    inside = scaling.integer("original_max_position_embeddings", max_length)
    original = config.integer("original_max_position_embeddings", inside)
    return _READERS[kind](base, scaling, original, max_length)


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """Return the factor of cosines and sines that YaRN's authors recommend."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1


def yarn_scale(scaling: ConfigFields, name: str) -> float:
    """Return YaRN's mscale or mscale_all_dim. Raises BadModel: it is out of range."""
    value = scaling.number(name)
    if value > MOST_MSCALE:
        raise scaling.error(name, f"is out of range; allowed: at most {MOST_MSCALE:g}")
    return value


def scaling_table(config: ConfigFields, layer_type: str = "") -> ConfigFields | None:
    """Return the fields of a scaling, whichever name they have; None: there is none. See `rope_from_config`."""
    scaling, parameters = config.table("rope_scaling"), config.table("rope_parameters")
    if parameters and layer_type and parameters.has(layer_type):
        return parameters.table(layer_type)
    if scaling and parameters and config.get("rope_scaling") != config.get("rope_parameters"):
        raise config.error("rope_scaling", "contradicts rope_parameters")
    return scaling or parameters


def _rotary_dim(config: ConfigFields, scaling: ConfigFields | None, head_dim: int, rotating: float | None) -> int:
    """Return the number of leading entries of a head that rotate."""
    fields = scaling if scaling and scaling.get("partial_rotary_factor") is not None else config
    # A null is none of the family's share, but that all of a head rotates.
    absent = 1.0 if rotating is None or config.has("partial_rotary_factor") else rotating
    share = fields.number("partial_rotary_factor", absent)
    if rotating is None and share != 1:
        raise fields.error("partial_rotary_factor", "is not supported for this architecture")
    dim = int(head_dim * share)
    if not 2 <= dim <= head_dim or dim % 2:
        text = f"makes {dim} of {head_dim} entries of a head rotate; allowed: an even number, at most all"
        raise fields.error("partial_rotary_factor", text)
    return dim


def scaling_type_name(scaling: ConfigFields) -> str:
    """Return the name of the field with the type."""
    return "type" if scaling.get("rope_type") is None and scaling.get("type") is not None else "rope_type"


def scaling_type(scaling: ConfigFields) -> str:
    """Return the type of a scaling. Raises BadModel: two fields contradict each other."""
    name = scaling_type_name(scaling)
    kind = scaling.text(name, "default")
    other = scaling.get("type")
    if other is not None and other != kind:
        raise scaling.error("type", f"contradicts rope_type = {kind!r}")
    if kind == "default" and scaling.get("factor") not in (None, 1, 1.0):
        raise scaling.error(name, f"names no scaling that takes the factor {scaling.get('factor')!r}")
    return kind


def _default(base: RopeSpec, scaling: ConfigFields, original: int, max_length: int) -> RopeSpec:
    return base


def _linear(base: RopeSpec, scaling: ConfigFields, original: int, max_length: int) -> RopeSpec:
    return replace(base, scaling=RopeScalingType.LINEAR, factor=scaling.number("factor", minimum=1))


def _dynamic(base: RopeSpec, scaling: ConfigFields, original: int, max_length: int) -> RopeSpec:
    factor = scaling.number("factor", minimum=1)
    if base.dim < 4:
        raise scaling.error(scaling_type_name(scaling), f"needs 4 entries of a head that rotate; there are {base.dim}")
    return replace(base, scaling=RopeScalingType.DYNAMIC, factor=factor, original_max_length=max_length)


def _llama3(base: RopeSpec, scaling: ConfigFields, original: int, max_length: int) -> RopeSpec:
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
        original_max_length=original,
    )


def _yarn(base: RopeSpec, scaling: ConfigFields, original: int, max_length: int) -> RopeSpec:
    factor = scaling.number("factor", max_length / original, minimum=1)
    _check_logarithm(scaling, "rope_theta", base.theta)
    default = yarn_attention_factor(factor)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        scales = (yarn_scale(scaling, name) for name in ("mscale", "mscale_all_dim"))
        above, below = (yarn_attention_factor(factor, scale) for scale in scales)
        default = above / below
    return replace(
        base,
        scaling=RopeScalingType.YARN,
        factor=factor,
        original_max_length=original,
        attention_factor=scaling.number("attention_factor", default),
        beta_fast=scaling.number("beta_fast", base.beta_fast),
        beta_slow=scaling.number("beta_slow", base.beta_slow),
        truncate=scaling.flag("truncate", True),
    )


def _longrope(base: RopeSpec, scaling: ConfigFields, original: int, max_length: int) -> RopeSpec:
    factor = scaling.number("factor", max_length / original)
    _check_logarithm(scaling, "original_max_position_embeddings", original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return replace(
        base,
        original_max_length=original,
        attention_factor=scaling.number("attention_factor", default),
        frequency_factors=_factors(scaling, "short_factor", base.dim // 2),
        long_factors=_factors(scaling, "long_factor", base.dim // 2),
    )


def _check_logarithm(scaling: ConfigFields, name: str, value: float) -> None:
    if value <= 1:
        raise scaling.error(name, f"must be above 1 for {scaling_type_name(scaling)} = {scaling_type(scaling)!r}")


def _factors(scaling: ConfigFields, name: str, count: int) -> tuple[float, ...]:
    values = scaling.get(name)
    if not isinstance(values, list) or len(values) != count or not all(map(is_factor, values)):
        text = f"must list {count} numbers, half of what rotates of a head, from {LEAST_FACTOR:g} to {MOST_NUMBER:g}"
        raise scaling.error(name, text)
    return tuple(map(float, values))


def is_factor(value: object) -> bool:
    """Return whether a value can divide an inverse frequency."""
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST_FACTOR <= value <= MOST_NUMBER


_Reader = Callable[[RopeSpec, ConfigFields, int, int], RopeSpec]
_READERS: Mapping[str, _Reader] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
