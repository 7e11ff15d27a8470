"""FP8 in the manner of DeepSeek: numbers of eight bits (e4m3), with a scale for each block, or one for a matrix."""

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
    for suffix in ("weight_scale_inv", "weight_scale"):
        for module in modules.having(suffix):
            codes = modules.take(module, "weight")
            outputs, inputs = check_matrix(codes, ("F8_E4M3",))
            scales = modules.take(module, suffix)
            if suffix == "weight_scale":
                check(scales, SCALES, scales.shape if scales.elements == 1 else (1,))
                group, height = 0, outputs
            else:
                group, height = block_sizes(fields, "weight_block_size")
                check(scales, SCALES, (count_groups(outputs, height), count_groups(inputs, group)))
            modules.put(module, numbers_matrix(module, codes, scales, group, height))
            dropped += modules.take_if_there(module, "input_scale") is not None
    used = f"not used, since activations are not quantized by the file: {dropped} scales"
    return Replaced(modules.rest, (used,) if dropped else ())
