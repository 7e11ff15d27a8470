"""Numbers of eight bits (e4m3): in blocks, as DeepSeek has them, with a scale for each output, or one for a matrix."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.quantization.modules import (
    SCALES,
    Modules,
    Replaced,
    block_sizes,
    check,
    check_matrix,
    check_only,
    check_unset,
    count_groups,
    numbers_matrix,
)


def read_fp8(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of FP8; see `replace_quantized`."""
    check_only(fields, "fmt", ("e4m3",), "e4m3")
    check_only(fields, "activation_scheme", ("dynamic", "static"), "dynamic")
    check_unset(fields, "kv_cache_scheme", "dequantize")
    modules, dropped = Modules(tensors), 0
    for module in modules.having("weight_scale_inv"):
        group, height = block_sizes(fields, "weight_block_size")
        _put(modules, module, "weight_scale_inv", group, height)
        dropped += modules.take_if_there(module, "input_scale") is not None
    for module in modules.having("weight_scale"):
        _put(modules, module, "weight_scale", 0, 0)
        dropped += modules.take_if_there(module, "input_scale") is not None
    used = f"not used, since activations are not quantized by the file: {dropped} scales"
    return Replaced(modules.rest, (_not_applied(fields, "activation_scheme"), *((used,) if dropped else ())))


def read_fbgemm_fp8(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of FBGEMM, which has a scale for each output; see `replace_quantized`."""
    modules = Modules(tensors)
    for module in modules.having("weight_scale"):
        _put(modules, module, "weight_scale", 0, 1)
    return Replaced(modules.rest, (_not_applied(fields, "activation_scale_ub"),))


def _not_applied(fields: ConfigFields, name: str) -> str:
    return f"{fields.source}: {name} is not applied: activation_quant of an install quantizes activations"


def _put(modules: Modules, module: str, suffix: str, group: int, height: int) -> None:
    """Put one matrix in place of a module's codes and scales; a height or group of 0: all outputs or inputs share."""
    codes, scales = modules.take(module, "weight"), modules.take(module, suffix)
    outputs, inputs = check_matrix(codes, ("F8_E4M3",))
    if height:
        check(scales, SCALES, (count_groups(outputs, height), count_groups(inputs, group)))
    else:
        check(scales, SCALES, scales.shape if scales.elements == 1 else (1,))
    modules.put(module, numbers_matrix(module, codes, scales, group, height or outputs))
