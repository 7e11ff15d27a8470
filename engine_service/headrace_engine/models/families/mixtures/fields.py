"""Reading of what configs and GGUF metadata say of mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.spec import DecoderSpec, ExpertsSpec

_MOST_EXPERTS = 4_096
"""Maximum number of experts of a layer: more than any model has, so that a larger number is a damaged config."""


def read_experts(
    config: ConfigFields, *, count: str, width: str, normalised: bool, used: str = "num_experts_per_tok"
) -> ExpertsSpec:
    """Read a mixture of experts from the fields with these names.

    Raises:
        BadModel: a field is absent or out of range; names it.
    """
    experts = config.integer(count, maximum=_MOST_EXPERTS)
    return ExpertsSpec(experts, config.integer(used, maximum=experts), config.integer(width), normalised)


def with_experts(spec: DecoderSpec, experts: ExpertsSpec, where: Sequence[bool] | None = None) -> DecoderSpec:
    """Return the spec with experts in these layers; None: in all."""
    has = [True] * spec.num_layers if where is None else where
    layers = tuple(replace(layer, experts=each) for layer, each in zip(spec.layers, has, strict=True))
    return replace(spec, experts=experts, layers=layers)


def behind(
    spec: DecoderSpec, experts: ExpertsSpec, shared: int, fields: ConfigFields, name: str, dense: int
) -> DecoderSpec:
    """Return the spec with experts, and so many of all tokens, behind the first layers.

    Args:
        name: the field with the number of layers that are dense.
        dense: that number, where the field is absent.

    Raises:
        BadModel: there are no layers behind those; names the field.
    """
    first = fields.integer(name, dense, minimum=0)
    if first >= spec.num_layers:
        raise fields.error(name, f"leaves none of {spec.num_layers} layers with experts")
    experts = replace(experts, shared_width=shared * experts.width)
    return with_experts(spec, experts, [index >= first for index in range(spec.num_layers)])


def with_groups(
    fields: ConfigFields,
    experts: ExpertsSpec,
    count: int | None,
    used: int | None,
    names: tuple[str, str, str, str] = ("n_group", "topk_group", "n_routed_experts", "num_experts_per_tok"),
) -> ExpertsSpec:
    """Return the experts, of which a token takes those of some groups alone if fields say so.

    Args:
        count, used: the number of groups and of those, where there are no fields; None: there must be.
        names: of the fields with the numbers of groups, of those of a token, of experts and of those of a token.

    Raises:
        BadModel: the numbers contradict each other; names the field.
    """
    all_groups, some_groups, all_experts, some_experts = names
    groups = fields.integer(all_groups, count)
    if experts.count % groups:
        raise fields.error(all_groups, f"does not divide {all_experts} = {experts.count}")
    size, allowed = experts.count // groups, fields.integer(some_groups, used, maximum=groups)
    if allowed == groups:
        return experts
    if experts.corrected and size < 2:
        raise fields.error(all_groups, f"makes groups of one of {experts.count} experts; allowed: of at least 2")
    if size * allowed < experts.used:
        text = f"allows {size * allowed} of {experts.count} experts, fewer than {some_experts} = {experts.used}"
        raise fields.error(some_groups, text)
    return replace(experts, groups=groups, groups_used=allowed)


def gguf_experts(
    metadata: ConfigFields,
    spec: DecoderSpec,
    *,
    normalised: bool,
    width: str = "expert_feed_forward_length",
    scaled: bool = False,
    sigmoid: bool = False,
    corrected: bool = False,
) -> ExpertsSpec:
    """Read a mixture of experts from GGUF metadata.

    Args:
        normalised: of the architecture, where the file does not say.
        scaled: weights may have a factor.
        sigmoid, corrected: see ExpertsSpec.

    Raises:
        BadModel: a key is absent, out of range, or says what is not supported; names it.
    """
    scale = 1.0 if metadata.get("expert_weights_scale") in (None, 0.0) else metadata.number("expert_weights_scale")
    if scale != 1 and not scaled:
        raise metadata.error("expert_weights_scale", "is not supported for this architecture")
    count = metadata.integer("expert_count", maximum=_MOST_EXPERTS)
    experts = ExpertsSpec(
        count=count,
        used=metadata.integer("expert_used_count", maximum=count),
        width=metadata.integer(width, spec.intermediate_size),
        normalised=metadata.flag("expert_weights_norm", normalised),
        scale=scale,
        sigmoid=sigmoid,
        corrected=corrected,
    )
    names = ("expert_group_count", "expert_group_used_count", "expert_count", "expert_used_count")
    return with_groups(metadata, experts, 1, 1 if metadata.get(names[0]) in (None, 1) else None, names)
