"""AWQ in the layout of its gemm kernels: words of eight outputs, codes in the order 0 2 4 6 1 3 5 7."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.quantization.modules import (
    SCALES,
    Modules,
    Replaced,
    check,
    check_matrix,
    check_only,
    count_groups,
    matrix,
    own_group,
    read_group,
    scale_bits,
)
from headrace_engine.models.quantized_rows import QuantizedType

_BITS = 4
_IN_WORD = 8


def read_awq(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of AWQ; see `replace_quantized`."""
    check_only(fields, "bits", (_BITS,), None)
    check_only(fields, "version", ("gemm", "GEMM"), "gemm")
    check_only(fields, "zero_point", (True,), True)
    group = read_group(fields)
    modules = Modules(tensors)
    for module in modules.having("qweight"):
        modules.put(module, _matrix(modules, module, group))
    return Replaced(modules.rest)


def _matrix(modules: Modules, module: str, group: int) -> StoredTensor:
    codes = modules.take(module, "qweight")
    inputs, words = check_matrix(codes, ("I32",))
    outputs, count = words * _IN_WORD, count_groups(inputs, group)
    if inputs % 2:
        raise codes.error(f"has {inputs} inputs; allowed: an even number")
    scales = check(modules.take(module, "scales"), SCALES, (count, outputs))
    zeros = check(modules.take(module, "qzeros"), ("I32",), (count, words))
    kind = QuantizedType(_BITS, own_group(group), scale_bits(scales, True), has_offsets=True)
    return matrix(module, kind, (outputs, inputs), "AWQ", (codes, scales, zeros), group)
