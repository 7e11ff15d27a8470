"""Decoders of well-known shapes, with random weights on a device, without files."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.pool import bytes_a_block, kv_blocks
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.weights.fused import side_by_side
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.config import WeightQuant
from headrace_engine.models.spec import DecoderSpec, LayerSpec, RopeSpec
from headrace_engine.models.tensor_shapes import expected_shapes
from headrace_engine.native import Kv
from torch import Tensor

from bench.gpu.codes import quantized_bytes, quantized_weights

BLOCK_SIZE = 16
BFLOAT16 = 2

KV_BYTES: Mapping[Kv, Callable[[int], float]] = {
    Kv.BFLOAT16: lambda dim: 2.0 * dim,
    Kv.INT8: lambda dim: dim + 8.0,
    Kv.UINT4: lambda dim: dim / 2 + 8.0,
}
"""Bytes of one head of one token: its entries, and their step and lowest value if quantized."""


@dataclass(frozen=True)
class Stored:
    """Formats of a model's weights, and of its keys and values."""

    weights: WeightQuant = WeightQuant.NONE
    kv: Kv = Kv.BFLOAT16


NUMBERS = Stored()
"""Everything in bfloat16."""


def _llama(
    layers: int, hidden: int, inner: int, heads: tuple[int, int, int], vocab: int, *, tied: bool, biases: bool = False
) -> DecoderSpec:
    return DecoderSpec(
        architecture="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        intermediate_size=inner,
        norm_eps=1e-5,
        ropes=(RopeSpec(theta=500_000.0, dim=heads[2]),),
        layers=(LayerSpec(),) * layers,
        max_length=8192,
        qkv_bias=biases,
        tied_head=tied,
    )


SMOL = _llama(30, 576, 1536, (9, 3, 64), 49_152, tied=True)
"""The shape of SmolLM2-135M."""
LLAMA = _llama(32, 4096, 14_336, (32, 8, 128), 128_256, tied=False)
"""The shape of Llama 3.1 8B."""
QWEN = _llama(28, 1536, 8960, (12, 2, 128), 151_936, tied=True, biases=True)
"""The shape of Qwen2.5-1.5B."""
TINY = _llama(2, 128, 256, (4, 2, 64), 256, tied=False)
"""For the simulated device."""


def weight_values(spec: DecoderSpec) -> int:
    """Return the number of values in the matrices that a step reads whole: of layers and head."""
    every = sum(math.prod(shape) for shape in expected_shapes(spec).values())
    return every if spec.tied_head else every - spec.vocab_size * spec.hidden_size


def weight_bytes(spec: DecoderSpec, weights: WeightQuant) -> float:
    """Return the bytes of those matrices, as stored."""
    if weights is WeightQuant.NONE:
        return float(BFLOAT16 * weight_values(spec))
    read = {name: shape for name, shape in expected_shapes(spec).items() if spec.tied_head or name != "embed"}
    return quantized_bytes(read, weights)


def random_model(spec: DecoderSpec, device: Device, sizes: Sizes, stored: Stored = NUMBERS) -> CudaModel:
    """Return a decoder with random weights; arguments as of `model_of`."""
    quantized = {} if stored.weights is WeightQuant.NONE else quantized_weights(spec, device, stored.weights)
    numbers = random_weights(spec, device.torch, without=quantized)
    return model_of(spec, device, {**numbers, **quantized}, sizes, stored.kv)


def random_weights(spec: DecoderSpec, device: torch.device, without: Container[str] = ()) -> dict[str, Tensor]:
    """Return random weights of a decoder in bfloat16, by canonical name, in the order in memory of the cuda backend.

    Args:
        without: names that are left out.
    """
    shapes = {name: shape for name, shape in expected_shapes(spec).items() if name not in without}
    numbers = {name: _random(shape, device) for name, shape in shapes.items()}
    side_by_side(numbers, spec)
    return numbers


def model_of(
    spec: DecoderSpec, device: Device, weights: Mapping[str, Any], sizes: Sizes, kv: Kv = Kv.BFLOAT16
) -> CudaModel:
    """Return a decoder of the cuda backend.

    Args:
        sizes: sizes of its largest step; `sizes.blocks` limits the length of sequences.
        kv: format of keys and values.
    """
    blocks = kv_blocks(spec, sizes.block_size, kv)
    return CudaModel(
        device=device,
        spec=spec,
        weights=weights,
        positions=Positions(spec, sizes.blocks * sizes.block_size, device.torch),
        blocks=blocks,
        block_bytes=bytes_a_block(device.native, blocks),
        sizes=sizes,
        num_threads=1,
    )


def _random(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return norms and biases around one; matrices that preserve the norm of vectors they are multiplied with."""
    values = torch.randn(shape, dtype=torch.bfloat16, device=device)
    return values.mul_(0.1).add_(1) if len(shape) == 1 else values.mul_(shape[-1] ** -0.5)
