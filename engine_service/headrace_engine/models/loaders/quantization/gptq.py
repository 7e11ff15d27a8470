"""GPTQ: words of codes along the inputs, zero points one lower than they count (or, in gptq_v2, as they count)."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.quantization.modules import (
    SCALES,
    WORD,
    Modules,
    Replaced,
    check,
    check_matrix,
    check_only,
    check_unset,
    check_whole,
    count_groups,
    group_order,
    matrix,
    own_group,
    read_group,
    scale_bits,
)
from headrace_engine.models.quantized_rows import QuantizedType

_LAYOUTS = {"gptq": "GPTQ", "gptq_v2": "GPTQ_V2"}


def read_gptq(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of GPTQ; see `replace_quantized`."""
    bits, group = int(str(check_only(fields, "bits", (4, 8), None))), read_group(fields)
    has_offsets = not fields.flag("sym", True)
    name = "checkpoint_format" if fields.has("checkpoint_format") else "format"
    layout = _LAYOUTS[str(check_only(fields, name, tuple(_LAYOUTS), "gptq"))]
    check_only(fields, "pack_dtype", ("int32",), "int32")
    check_unset(fields, "dynamic", "is_marlin_format", "adapter")
    ordered = fields.flag("desc_act", False) and group > 0
    modules = Modules(tensors)
    for module in modules.having("qweight"):
        order = modules.take(module, "g_idx") if ordered else modules.take_if_there(module, "g_idx")
        modules.put(module, _matrix(modules, module, bits, group, has_offsets, layout, order))
    return Replaced(modules.rest)


def _matrix(
    modules: Modules,
    module: str,
    bits: int,
    group: int,
    has_offsets: bool,
    layout: str,
    order: StoredTensor | None,
) -> StoredTensor:
    """Return a module's matrix; as numbers, if its groups have inputs from all over."""
    codes, in_word = modules.take(module, "qweight"), WORD // bits
    words, outputs = check_matrix(codes, ("I32",))
    inputs = words * in_word
    count = count_groups(inputs, group)
    check_whole(codes, outputs, in_word)
    scales = check(modules.take(module, "scales"), SCALES, (count, outputs))
    zeros = check(modules.take(module, "qzeros"), ("I32",), (count, outputs // in_word))
    if order is not None:
        order = group_order(check(order, ("I32",), (inputs,)), group or inputs, count)
    kind = QuantizedType(bits, own_group(group), scale_bits(scales, has_offsets), has_offsets)
    return matrix(module, kind, (outputs, inputs), layout, (codes, scales, zeros), group, order=order)
