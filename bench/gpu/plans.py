"""Sizes of what `make gpu-check` measures: on a card, and on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_engine.models.spec import DecoderSpec

from bench.gpu import costs, decode
from bench.gpu.parts import sanitizer
from bench.gpu.shapes import LLAMA, SMOL, TINY

H100 = (3.0e12, 798e12)
"""Bytes per second of a copy, and operations per second of a bfloat16 product, as measured on another H100."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the measurements.

    Attributes:
        copied: bfloat16 numbers of the copy.
        side: side of the square matrices of the product.
        layer: the decoder whose ops are measured.
        shapes: the decoders that are measured whole, by name.
        compared: the one of these whose ids are compared with torch's.
        new: ids of each answer that is compared.
        sanitized: files of tests that are run under NVIDIA's sanitizers.
    """

    copied: int
    side: int
    layer: DecoderSpec
    scale: costs.Scale
    shapes: Mapping[str, DecoderSpec]
    load: decode.Load
    compared: str
    new: int
    sanitized: Sequence[str]


WHOLE = Plan(
    copied=1 << 29,
    side=8192,
    layer=LLAMA,
    scale=costs.WHOLE,
    shapes={"SmolLM2-135M": SMOL, "Llama 3.1 8B": LLAMA},
    load=decode.WHOLE,
    compared="SmolLM2-135M",
    new=64,
    sanitized=sanitizer.FILES,
)
SHORT = Plan(
    copied=1 << 12,
    side=32,
    layer=TINY,
    scale=costs.SHORT,
    shapes={"tiny": TINY},
    load=decode.SHORT,
    compared="tiny",
    new=8,
    sanitized=("test_device_kv.py",),
)
PLANS = {"cuda": WHOLE, "sim": SHORT}
