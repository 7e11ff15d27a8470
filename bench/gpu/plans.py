"""Sizes of what `make gpu-check` measures: on a card, and on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.models.spec import DecoderSpec

from bench.gpu import costs, decode
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
    """

    copied: int
    side: int
    layer: DecoderSpec
    scale: costs.Scale
    shapes: Mapping[str, DecoderSpec]
    load: decode.Load


WHOLE = Plan(1 << 29, 8192, LLAMA, costs.WHOLE, {"SmolLM2-135M": SMOL, "Llama 3.1 8B": LLAMA}, decode.WHOLE)
SHORT = Plan(1 << 12, 32, TINY, costs.SHORT, {"tiny": TINY}, decode.SHORT)
PLANS = {"cuda": WHOLE, "sim": SHORT}
