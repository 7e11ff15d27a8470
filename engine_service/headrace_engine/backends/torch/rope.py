"""Rotary position embedding: inverse frequencies and their tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace_engine.config import RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> Tensor:
    """Return radians per position, float32 [dim / 2].

    Every step is rounded to float32 as in the models' training code: at position 10⁵, one rounding more or less changes
    the angle by 0.01.

    Raises:
        InvalidArgument: the kind of scaling is not supported.
    """
    exponents = torch.arange(0, rope.dim, 2).float() / rope.dim
    plain = 1.0 / rope.theta**exponents
    if rope.frequency_factors:
        return plain / torch.tensor(rope.frequency_factors)
    match rope.scaling:
        case RopeScalingType.MODEL:
            return plain
        case RopeScalingType.LINEAR:
            return plain / rope.factor
        case RopeScalingType.LLAMA3:
            return _llama3(plain, rope)
    text = f"= {rope.scaling} is not supported; allowed: MODEL, LINEAR, LLAMA3"
    raise InvalidArgument.unsupported("config.rope_scaling.type", text)


def _llama3(plain: Tensor, rope: RopeSpec) -> Tensor:
    """Keep short wavelengths, stretch long ones by the factor, and blend between."""
    wavelength = 2 * math.pi / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share = (rope.original_max_length / wavelength - low) / (high - low)
    blended = (1 - share) * plain / rope.factor + share * plain
    scaled = torch.where(wavelength > rope.original_max_length / low, plain / rope.factor, blended)
    return torch.where(wavelength < rope.original_max_length / high, plain, scaled)


class RotaryTable:
    """Cosines and sines of all positions below `length`.

    Args:
        rope: the embedding.
        length: number of positions.
        device: the device that holds the tables; they take 4 · length · dim bytes together.

    Attributes:
        cos, sin: float32 [length, dim / 2].
    """

    def __init__(self, rope: RopeSpec, length: int, device: torch.device) -> None:
        angles = torch.outer(torch.arange(length).float(), inverse_frequencies(rope))
        self._dim = rope.dim
        self.cos = angles.cos().to(device)
        self.sin = angles.sin().to(device)

    @property
    def nbytes(self) -> int:
        """Bytes of both tables."""
        return self.cos.nbytes + self.sin.nbytes

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the leading dim entries of each head of x [rows, heads, head_dim]; entry i pairs with i + dim / 2.

        It is computed in float32, whatever the type of x.
        """
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        rotary = x[..., : self._dim].float()
        first, second = rotary.chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((rotated.to(x.dtype), x[..., self._dim :]), dim=-1)
