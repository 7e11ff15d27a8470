"""Reading of what configs and GGUF metadata say of mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.spec import DecoderSpec, ExpertsSpec

_MOST_EXPERTS = 4_096
"""Maximum number of experts of a layer: more than any model has, so that a larger number is a damaged config."""
_MOST_GROUPS = 64
"""The same of groups: published models have at most 8, and a row takes time with their number squared."""
SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func` in GGUF files."""
_HF_GROUPS = ("n_group", "topk_group", "n_routed_experts", "num_experts_per_tok")
_GGUF_GROUPS = ("expert_group_count", "expert_group_used_count", "expert_count", "expert_used_count")
"""Names of the numbers of groups, of those of a token, of experts and of those of a token."""


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
    names: tuple[str, str, str, str] = _HF_GROUPS,
) -> ExpertsSpec:
    """Return the experts, of which a token takes those of some groups alone if fields say so.

    Args:
        count, used: the number of groups and of those, where there are no fields; None: there must be.
        names: of the fields; see _HF_GROUPS.

    Raises:
        BadModel: the numbers contradict each other; names the field.
    """
    all_groups, some_groups, all_experts, some_experts = names
    groups = fields.integer(all_groups, count, maximum=_MOST_GROUPS)
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
    groups: tuple[int, int] | None = None,
) -> ExpertsSpec:
    """Read a mixture of experts from GGUF metadata.

    Args:
        normalised: of the architecture, where the file does not say.
        scaled: weights may have a factor.
        sigmoid, corrected: see ExpertsSpec.
        groups: the number of groups and of those of a token, where the file does not say; None: of an architecture
            without groups.

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
    return _with_gguf_groups(metadata, experts, groups)


def _with_gguf_groups(metadata: ConfigFields, experts: ExpertsSpec, default: tuple[int, int] | None) -> ExpertsSpec:
    all_groups, some_groups = _GGUF_GROUPS[:2]
    count = metadata.integer(all_groups, 0, minimum=0, maximum=_MOST_GROUPS)
    if count > 1:
        if default is None:
            raise metadata.error(all_groups, "is not supported for this architecture")
        return with_groups(metadata, experts, None, None, _GGUF_GROUPS)
    given = metadata.get(all_groups)
    if metadata.integer(some_groups, 0, minimum=0) > 1:
        found = "is absent" if given is None else f"= {given}"
        raise metadata.error(some_groups, f"is not supported: {metadata.prefix}{all_groups} {found}")
    if given is not None or default is None:
        return experts
    return with_groups(metadata.replacing({some_groups: None}), experts, *default, _GGUF_GROUPS)


def gating_function(metadata: ConfigFields, default: int, allowed: Sequence[int]) -> int:
    """Return what GGUF metadata says of how scores become weights; 0 in a file is no value.

    Raises:
        BadModel: it is none of those allowed.
    """
    name = "expert_gating_func"
    function = metadata.integer(name, 0, minimum=0) or default
    if function not in allowed:
        few = f"{'is' if len(allowed) == 1 else 'are'} {', '.join(map(str, allowed))}"
        raise metadata.error(name, f"is not supported for this architecture; supported {few}")
    return function
