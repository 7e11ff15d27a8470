"""Checkpoints as other programs quantize them, of tiny models; and the same weights as numbers, for transformers.

GPTQ and AWQ are packed as AutoGPTQ's and AutoAWQ's own `pack` functions do, value by value: w = (code − zero) · scale.
The package compressed-tensors and transformers pack and unpack their formats themselves.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.models.damage import edit_json

WEIGHTS = "model.safetensors"
_ROUTER = "mlp.gate."
_LAYER = re.compile(r"\.\d+\.")
"""In the names of tensors of layers."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Of the eight codes in a word of AutoAWQ's gemm layout, the output that each belongs to."""

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Levels of NF4, as bitsandbytes has them."""

Packed = tuple[dict[str, Tensor], Tensor]
"""A matrix as tensors by suffix, and the weights that these stand for."""

Packing = Callable[[Tensor], Packed]
ByName = Callable[[str, Tensor], Packed | None]
"""Packs a matrix of a name; None: it stays numbers."""


@dataclass(frozen=True)
class Codes:
    """A quantized matrix: codes [outputs, inputs], scales and zero points [outputs, groups]."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group: int

    @property
    def weights(self) -> Tensor:
        """The weights in float32, which has them all exactly; see the module."""
        scales, zeros = (part.double().repeat_interleave(self.group, 1) for part in (self.scales, self.zeros))
        inputs = self.codes.shape[1]
        exact = (self.codes.double() - zeros[:, :inputs]) * scales[:, :inputs]
        assert bool((exact.float().double() == exact).all())
        return exact.float()


def quantize(weight: Tensor, bits: int, group: int, *, symmetric: bool, dtype: torch.dtype = torch.float16) -> Codes:
    """Quantize a matrix to unsigned codes, from the least to the greatest weight of a group, −1: of a row."""
    group, most = weight.shape[1] if group == -1 else group, 2**bits - 1
    filled = torch.nn.functional.pad(weight, (0, -weight.shape[1] % group)).unflatten(1, (-1, group))
    low, high = filled.amin(2).clamp(max=0), filled.amax(2).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / most).clamp(min=1e-5).to(dtype)
    zeros = torch.full_like(low, 2 ** (bits - 1)) if symmetric else (-low / scales).round().clamp(1, most)
    codes = (filled / scales[..., None] + zeros[..., None]).round().clamp(0, most)
    return Codes(codes.flatten(1)[:, : weight.shape[1]].int(), scales, zeros.int(), group)


def gptq(bits: int, group: int, *, symmetric: bool, version: int = 1, ordered: bool = False) -> Packing:
    """AutoGPTQ's QuantLinear; in version 1 zero points are stored one lower.

    Args:
        ordered: groups have inputs from all over, as with `desc_act`.
    """

    def packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        made = quantize(weight, bits, group, symmetric=symmetric)
        if ordered:
            return _reordered(made, bits, version)
        tensors = {
            "qweight": _words(made.codes.T, bits),
            "qzeros": _words(made.zeros - int(version == 1), bits).T.contiguous(),
            "scales": made.scales.T.contiguous(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // made.group,
        }
        return tensors, made.weights

    return packed


def _reordered(made: Codes, bits: int, version: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return what would be stored had the inputs been in another order when they were parted into groups."""
    inputs = made.codes.shape[1]
    places = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    tensors = {
        "qweight": _words(made.codes[:, places].T, bits),
        "qzeros": _words(made.zeros - int(version == 1), bits).T.contiguous(),
        "scales": made.scales.T.contiguous(),
        "g_idx": (places // made.group).int(),
    }
    return tensors, made.weights[:, places].contiguous()


def awq(group: int) -> Packing:
    """AutoAWQ's WQLinear_GEMM."""

    def packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        made = quantize(weight, 4, group, symmetric=False)
        codes, zeros = (part.T.unflatten(1, (-1, 8))[:, :, AWQ_ORDER].flatten(1) for part in (made.codes, made.zeros))
        tensors = {"qweight": _words(codes.T, 4).T, "qzeros": _words(zeros.T, 4).T, "scales": made.scales.T}
        return {name: tensor.contiguous() for name, tensor in tensors.items()}, made.weights

    return packed


def compressed(kind: str, **weights: Any) -> Packing:
    """A format of compressed-tensors, by its package, which unpacks with scales in float32, and so exactly.

    Args:
        kind: name of the format.
        weights: fields of QuantizationArgs.
    """
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(**weights)
    scheme, compressor = (
        QuantizationScheme(targets=["Linear"], weights=args),
        BaseCompressor.get_value_from_registry(kind),
    )

    def packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        state = {"weight": weight, **_parameters(weight, args)}
        made = compressor.compress(state, scheme)
        plain = compressor.decompress(dict(made), scheme)["weight"]
        assert plain.dtype == torch.float32
        return {**made, "weight_scale": made["weight_scale"].bfloat16()}, plain

    return packed


def _parameters(weight: Tensor, args: Any) -> dict[str, Tensor]:
    """Return scales, and zero points if there are any, as an observer finds them."""
    from compressed_tensors.quantization.utils import calculate_qparams

    values, strategy = weight, str(args.strategy)
    if strategy == "group":
        values = weight.unflatten(1, (-1, args.group_size))
    if strategy == "block":
        high, wide = args.block_structure
        values = weight.unflatten(0, (-1, high)).unflatten(2, (-1, wide)).transpose(1, 2).flatten(2)
    if strategy == "tensor":
        low, most = weight.min().reshape(1), weight.max().reshape(1)
    else:
        low, most = values.amin(-1, keepdim=strategy == "channel"), values.amax(-1, keepdim=strategy == "channel")
    scale, zero = calculate_qparams(low, most, args)
    scale = scale.bfloat16().float()
    return {"weight_scale": scale} if args.symmetric else {"weight_scale": scale, "weight_zero_point": zero}


def block_fp8(high: int, wide: int) -> Packing:
    """DeepSeek's blocks of FP8, as transformers dequantizes them."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    def packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        blocks = weight.unflatten(0, (-1, high)).unflatten(2, (-1, wide)).abs()
        scales = (blocks.amax((1, 3)) / 448).clamp(min=1e-9)
        spread = scales.repeat_interleave(high, 0).repeat_interleave(wide, 1)
        codes = (weight / spread).to(torch.float8_e4m3fn)
        plain = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
        return {"weight": codes, "weight_scale_inv": scales}, plain

    return packed


def fbgemm_fp8(weight: Tensor) -> Packed:
    """FBGEMM's FP8: a scale for each output, by which transformers multiplies what torch's `_scaled_mm` computes."""
    scales = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def nf4(group: int, *, nested: bool) -> Packing:
    """NF4 of bitsandbytes: quantiles of a normal distribution, two codes in a byte, the first in its upper half.

    Args:
        nested: whether scales are codes, too: of a table, with a scale for each 256 of them, around their mean.
    """

    def packed(weight: Tensor) -> Packed:
        blocks = weight.reshape(-1, group)
        scales = blocks.abs().amax(1)
        tensors, state = {"weight.absmax": scales}, {"quant_type": "nf4", "blocksize": group}
        if nested:
            offset = scales.mean()
            inner = torch.nn.functional.pad(scales - offset, (0, -len(scales) % 256)).reshape(-1, 256).abs().amax(1)
            table = torch.linspace(-1, 1, 256)
            ratios = (scales - offset) / inner.repeat_interleave(256)[: len(scales)]
            chosen = (ratios[:, None] - table).abs().argmin(1)
            scales = table[chosen] * inner.repeat_interleave(256)[: len(scales)] + offset
            tensors = {"weight.absmax": chosen.byte(), "weight.nested_absmax": inner, "weight.nested_quant_map": table}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        levels = torch.tensor(NF4)
        codes = (blocks[:, :, None] / scales[:, None, None] - levels).abs().argmin(2).reshape(-1, 2)
        described = json.dumps({**state, "dtype": "float32", "shape": list(weight.shape)}).encode()
        tensors |= {
            "weight": (codes[:, :1] << 4 | codes[:, 1:]).byte(),
            "weight.quant_map": levels,
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(described), dtype=torch.uint8),
        }
        return tensors, (levels[codes.reshape(-1, group)] * scales[:, None]).reshape(weight.shape)

    return packed


def llm_int8(weight: Tensor) -> Packed:
    """Eight bits of bitsandbytes: for each output the weight of the code 127."""
    most = weight.abs().amax(1)
    codes = (weight / most[:, None] * 127).round().to(torch.int8)
    layout = torch.tensor(0, dtype=torch.uint8)
    return {"weight": codes, "SCB": most, "weight_format": layout}, codes * (most / 127)[:, None]


def _words(values: Tensor, bits: int) -> Tensor:
    """Pack along the first dimension, lowest bits first, into int32."""
    words = torch.zeros(len(values) * bits // 32, values.shape[1], dtype=torch.int64)
    for place in range(32 // bits):
        words |= values[place :: 32 // bits].long() << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def write_quantized(path: Path, source: Path, packing: Packing, config: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write the model of a directory with its layers' matrices quantized; and with the same weights as numbers.

    Routers of experts stay numbers.
    """
    return write_by_name(path, source, lambda name, weight: None if _ROUTER in name else packing(weight), config)


def write_by_name(path: Path, source: Path, packing: ByName, config: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write a model as `write_quantized` does, each matrix as its name says."""
    tensors = load_file(source / WEIGHTS)
    quantized, plain = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        packed = packing(name, weight) if weight.dim() == 2 and _LAYER.search(name) else None
        if packed is not None:
            parts, plain[name] = packed
            del quantized[name]
            quantized |= {f"{name.removesuffix('.weight')}.{suffix}": part for suffix, part in parts.items()}
    for name, content in (("quantized", quantized), ("plain", plain)):
        shutil.copytree(source, path / name)
        save_file(content, path / name / WEIGHTS, metadata={"format": "pt"})
    edit_json(path / "quantized" / "config.json", quantization_config=dict(config))
    return path / "quantized", path / "plain"


def _scheme(kind: str, **weights: Any) -> tuple[Packing, dict[str, Any]]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}
    return compressed(kind, **weights), {**config, "ignore": ["lm_head"], "kv_cache_scheme": None}


_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_INT8 = {"num_bits": 8, "type": "int"}
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
_GPTQ = {"quant_method": "gptq", "desc_act": False}
SCHEMES: Mapping[str, tuple[Packing, dict[str, Any]]] = {
    "gptq": (gptq(4, 32, symmetric=True), {**_GPTQ, "bits": 4, "group_size": 32, "sym": True}),
    "gptq 8 bits": (gptq(8, -1, symmetric=True), {**_GPTQ, "bits": 8, "group_size": -1, "desc_act": True}),
    "gptq asymmetric": (gptq(4, 64, symmetric=False), {**_GPTQ, "bits": 4, "group_size": 64, "sym": False}),
    "gptq 8 bits asymmetric": (gptq(8, 32, symmetric=False), {**_GPTQ, "bits": 8, "group_size": 32, "sym": False}),
    "gptq v2": (
        gptq(4, 16, symmetric=False, version=2),
        {**_GPTQ, "bits": 4, "group_size": 16, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "awq": (awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "packed 4 bits": _scheme(
        "pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32, actorder="static"
    ),
    "packed 4 bits asymmetric": _scheme(
        "pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=16
    ),
    "packed 8 bits": _scheme("pack-quantized", **_INT8, symmetric=True, strategy="channel"),
    "packed 8 bits asymmetric": _scheme("pack-quantized", **_INT8, symmetric=False, strategy="channel"),
    "int8": _scheme("int-quantized", **_INT8, symmetric=True, strategy="channel"),
    "int8 of a matrix": _scheme("int-quantized", **_INT8, symmetric=True, strategy="tensor"),
    "int8 asymmetric": _scheme("naive-quantized", **_INT8, symmetric=False, strategy="channel"),
    "llm int8": (llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "awq whole rows": (awq(-1), {"quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM"}),
}
"""Ways to quantize into integers: the layout, and the `quantization_config` that goes with it."""

_ORDERED = {**_GPTQ, "desc_act": True, "group_size": 32}
NUMBERS: Mapping[str, tuple[Packing, dict[str, Any]]] = {
    "gptq act-order": (gptq(4, 32, symmetric=True, ordered=True), {**_ORDERED, "bits": 4, "sym": True}),
    "gptq act-order asymmetric": (gptq(4, 32, symmetric=False, ordered=True), {**_ORDERED, "bits": 4, "sym": False}),
    "gptq 8 bits act-order": (gptq(8, 32, symmetric=False, ordered=True), {**_ORDERED, "bits": 8, "sym": False}),
    "float8": _scheme("float-quantized", **_FLOAT8, strategy="channel"),
    "float8 of a matrix": _scheme("naive-quantized", **_FLOAT8, strategy="tensor"),
    "float8 in blocks": _scheme("float-quantized", **_FLOAT8, strategy="block", block_structure=[16, 32]),
    "fbgemm fp8": (fbgemm_fp8, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
    "nf4": (nf4(64, nested=False), _NF4),
    "nf4 with scales in codes": (nf4(64, nested=True), _NF4),
    "block fp8": (block_fp8(16, 32), {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 32]}),
}
"""Ways to quantize that are read as numbers."""

ALL: Mapping[str, tuple[Packing, dict[str, Any]]] = {**SCHEMES, **NUMBERS}
