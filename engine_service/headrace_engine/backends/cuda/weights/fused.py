"""Stores projections of one input contiguously, so that one product computes them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import torch
from torch import Tensor

from headrace_engine.models.spec import DecoderSpec

_HEADS, _HEADS_OF_LATENTS = (("q", "k", "v"),), (("k", "v"),)
_TOGETHER = (("gate", "up"), ("shared_gate", "shared_up"))
"""Projections that share their input, in the order of the decoder."""


def sharing_input(spec: DecoderSpec, present: Container[str]) -> Iterator[list[str]]:
    """Yield the names of the projections that share an input, of those that are present."""
    return (names for names in _sharing_input(spec) if all(name in present for name in names))


def _sharing_input(spec: DecoderSpec) -> Iterator[list[str]]:
    for layer in range(spec.num_layers):
        for parts in (*(_HEADS if spec.latent is None else _HEADS_OF_LATENTS), *_TOGETHER):
            yield [f"layers.{layer}.{part}" for part in parts]


def side_by_side(weights: dict[str, Tensor], spec: DecoderSpec) -> None:
    """Move what is multiplied together into one tensor, and replace it by slices of that.

    Biases are joined also where their matrices are quantized, and not among the weights.
    """
    for names in (*_sharing_input(spec), *_of_experts(spec)):
        _join(weights, names)
        _join(weights, [f"{name}_bias" for name in names])


def _of_experts(spec: DecoderSpec) -> Iterator[list[str]]:
    """Yield the names of what experts of a layer multiply first, and of what they multiply then."""
    numbers = range(0 if spec.experts is None else spec.experts.count)
    for layer in range(spec.num_layers):
        for parts in (("gate", "up"), ("down",)):
            yield [f"layers.{layer}.experts.{number}.{part}" for number in numbers for part in parts]


def _join(weights: dict[str, Tensor], names: Sequence[str]) -> None:
    if not names or not all(name in weights for name in names):
        return
    sizes = [len(weights[name]) for name in names]
    joined = torch.cat([weights.pop(name) for name in names])
    weights.update(zip(names, joined.split(sizes), strict=True))


def spanning(parts: Sequence[Tensor]) -> Tensor:
    """Return the tensor that consecutive slices make up.

    Raises:
        ValueError: they are not contiguous slices.
    """
    first = parts[0]
    address = first.data_ptr()
    for part in parts:
        if part.data_ptr() != address or not part.is_contiguous() or part.shape[1:] != first.shape[1:]:
            raise ValueError("the tensors do not lie one after another")
        address += part.nbytes
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride())
