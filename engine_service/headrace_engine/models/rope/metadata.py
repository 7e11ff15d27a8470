"""Rotary embedding as in GGUF metadata."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.config import RopeScalingType
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.rope.reading import DEFAULT_THETA, yarn_attention_factor
from headrace_engine.models.spec import RopeSpec


def rope_from_metadata(
    metadata: ConfigFields,
    head_dim: int,
    factors: tuple[float, ...],
    long_factors: tuple[float, ...] = (),
    *,
    partial: bool = False,
) -> RopeSpec:
    """Read the rotary embedding from GGUF metadata.

    Args:
        factors: divisors of the inverse frequencies from the file's tensors; empty if it has none.
        long_factors: the same for long sequences.
        partial: the family has models of which only a part of each head rotates.

    Raises:
        BadModel: the scaling type is unknown or not supported, or a factor is absent; names the field.
    """
    dim = metadata.integer("rope.dimension_count", head_dim)
    if not partial and dim != head_dim:
        raise metadata.error("rope.dimension_count", f"must be the head's size, {head_dim}")
    if dim > head_dim or dim % 2:
        raise metadata.error("rope.dimension_count", f"must be even, and at most the head's size, {head_dim}")
    base = RopeSpec(
        theta=metadata.number("rope.freq_base", DEFAULT_THETA, minimum=1),
        dim=dim,
        attention_factor=metadata.number("rope.scaling.attn_factor", 1.0),
        original_max_length=metadata.integer("rope.scaling.original_context_length", 0, minimum=0),
    )
    if metadata.get("rope.scaling.type") == "yarn":
        return _yarn_of_metadata(base, metadata)
    factor = _linear_factor(metadata, factored=bool(long_factors))
    if factors:
        divisors = tuple(value * factor for value in factors)
        return replace(base, frequency_factors=divisors, long_factors=tuple(value * factor for value in long_factors))
    return base if factor == 1 else replace(base, scaling=RopeScalingType.LINEAR, factor=factor)


_NEUTRAL = {"rope.scaling.yarn_attn_factor": (1,), "rope.scaling.yarn_ext_factor": (-1, 1)}
"""Keys of YaRN that are not computed, and the values that change nothing."""


def _yarn_of_metadata(base: RopeSpec, metadata: ConfigFields) -> RopeSpec:
    for name, neutral in _NEUTRAL.items():
        given = metadata.get(name)
        if given is not None and (isinstance(given, bool) or given not in neutral):
            raise metadata.error(name, "is not supported; allowed: 1, or leave it out")
    factor = metadata.number("rope.scaling.factor", minimum=1)
    if base.theta <= 1:
        raise metadata.error("rope.freq_base", "must be above 1 for rope.scaling.type = 'yarn'")
    scale = metadata.number("rope.scaling.yarn_log_multiplier", 1.0)
    if scale != 1:
        raise metadata.error("rope.scaling.yarn_log_multiplier", "is not supported; allowed: 1, or leave it out")
    given = metadata.get("rope.scaling.yarn_log_multiplier") is not None
    return replace(
        base,
        scaling=RopeScalingType.YARN,
        factor=factor,
        original_max_length=metadata.integer("rope.scaling.original_context_length"),
        attention_factor=base.attention_factor * (1.0 if given else yarn_attention_factor(factor)),
        beta_fast=metadata.number("rope.scaling.yarn_beta_fast", base.beta_fast),
        beta_slow=metadata.number("rope.scaling.yarn_beta_slow", base.beta_slow),
    )


def _linear_factor(metadata: ConfigFields, factored: bool) -> float:
    legacy = metadata.get("rope.scale_linear")
    name = "rope.scaling.factor" if legacy is None else "rope.scale_linear"
    kind = metadata.text("rope.scaling.type", "none" if metadata.get(name) is None else "linear")
    if kind == "none" or (kind == "longrope" and factored):
        return 1.0
    if kind != "linear":
        raise metadata.error("rope.scaling.type", "is not supported; supported are none, linear, yarn, longrope")
    return metadata.number(name, minimum=1)
