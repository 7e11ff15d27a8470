"""Checkpoints that other programs quantized, by the `quantization_config` of their config.json.

A module's several tensors become one, as StoredTensor.assembly describes: what follows sees a matrix like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace_engine.errors import shown
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.quantization.awq import read_awq
from headrace_engine.models.loaders.quantization.bitsandbytes import read_bitsandbytes
from headrace_engine.models.loaders.quantization.compressed_tensors import read_compressed_tensors
from headrace_engine.models.loaders.quantization.fp8 import read_fbgemm_fp8, read_fp8
from headrace_engine.models.loaders.quantization.gptq import read_gptq
from headrace_engine.models.loaders.quantization.modules import Replaced
from headrace_engine.models.loaders.quantization.mxfp4 import read_mxfp4

METHODS: Mapping[str, Callable[[ConfigFields, Mapping[str, StoredTensor]], Replaced]] = {
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm_fp8,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "mxfp4": read_mxfp4,
}
"""Readers by `quant_method`."""


_OLDER = "compression_config"
"""Name under which early versions of compressed-tensors wrote their settings."""

_CODES = (".qweight", ".weight_packed", ".SCB", ".weight_scale", ".weight_scale_inv", "_blocks")
"""Ends of names of tensors that only quantized modules have."""


def replace_quantized(config: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Return the tensors of a checkpoint with one matrix in place of the tensors of each quantized module.

    Raises:
        BadModel: the method, or a setting of it, is not supported, or a tensor is absent or of another type or shape.
    """
    fields, default = config.table("quantization_config"), None
    if fields is None:
        fields, default = config.table(_OLDER), "compressed-tensors"
    if fields is None:
        _check_numbers(config, tensors)
        return Replaced(dict(tensors))
    method = fields.get("quant_method") or default
    if not isinstance(method, str) or method not in METHODS:
        problem = f"is not supported; supported are {', '.join(sorted(METHODS))}"
        raise fields.error("quant_method", problem if method is not None else f"{problem}: it must be named")
    return METHODS[method](fields, tensors)


def _check_numbers(config: ConfigFields, tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse quantized modules of which the config says nothing."""
    found = next((name for name in tensors if name.endswith(_CODES)), None)
    if found is not None:
        raise config.error("quantization_config", f"must describe the quantized modules, of which {shown(found)} is")
