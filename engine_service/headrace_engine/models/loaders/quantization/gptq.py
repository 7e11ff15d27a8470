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
    matrix,
    own_group,
    read_group,
    scale_bits,
)
from headrace_engine.models.mapped import map_tensor
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
    if fields.flag("desc_act", False) and group:
        raise fields.error("desc_act", "is not supported with groups: their inputs are not in the order of the model's")
    modules = Modules(tensors)
    for module in modules.having("qweight"):
        weight = _matrix(modules, module, bits, group, has_offsets, layout)
        modules.put(module, weight)
    return Replaced(modules.rest)


def _matrix(modules: Modules, module: str, bits: int, group: int, has_offsets: bool, layout: str) -> StoredTensor:
    codes, in_word = modules.take(module, "qweight"), WORD // bits
    words, outputs = check_matrix(codes, ("I32",))
    inputs = words * in_word
    count = count_groups(inputs, group)
    check_whole(codes, outputs, in_word)
    scales = check(modules.take(module, "scales"), SCALES, (count, outputs))
    zeros = check(modules.take(module, "qzeros"), ("I32",), (count, outputs // in_word))
    order = modules.take_if_there(module, "g_idx")
    if order is not None:
        _check_order(check(order, ("I32",), (inputs,)), group or inputs)
    kind = QuantizedType(bits, own_group(group), scale_bits(scales, has_offsets), has_offsets)
    return matrix(module, kind, (outputs, inputs), layout, (codes, scales, zeros), group)


def _check_order(order: StoredTensor, group: int) -> None:
    """Check that the groups of inputs follow one another."""
    import numpy as np

    found = np.frombuffer(bytes(map_tensor(order)), dtype="<i4")
    wrong = np.flatnonzero(found != np.arange(len(found)) // group)
    if len(wrong):
        first = int(wrong[0])
        raise order.error(
            f"puts input {first} into group {found[first]}, expected {first // group}: act-order is not supported"
        )
