"""Tables of the rotary embedding for all positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.config import RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import RopeSpec

Floats = NDArray[np.float32]

_AT_ONCE = 2**14
"""Number of positions computed at a time: bounds the memory of their float64 angles."""


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines, float32 [positions, dim / 2] each."""

    cos: Floats
    sin: Floats

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.cos.nbytes + self.sin.nbytes


def rotary_tables(rope: RopeSpec, length: int) -> RotaryTables:
    """Return the tables of the positions below length.

    Raises:
        InvalidArgument: the kind of scaling is not supported.
    """
    frequencies = inverse_frequencies(rope)
    cos, sin = (np.empty((length, len(frequencies)), dtype=np.float32) for _ in range(2))
    for begin in range(0, length, _AT_ONCE):
        end = min(begin + _AT_ONCE, length)
        # The product is rounded to float32, as in the models' training code; the rest is exact.
        angles = np.outer(np.arange(begin, end, dtype=np.float32), frequencies).astype(np.float64)
        cos[begin:end], sin[begin:end] = np.cos(angles), np.sin(angles)
    return RotaryTables(cos, sin)


def inverse_frequencies(rope: RopeSpec) -> Floats:
    """Return radians per position, [dim / 2], every step rounded to float32 as in the models' training code.

    Raises:
        InvalidArgument: the kind of scaling is not supported.
    """
    exponents = (np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)).astype(np.float64)
    powers: Floats = np.power(rope.theta, exponents).astype(np.float32)
    plain: Floats = np.float32(1) / powers
    if rope.frequency_factors:
        divisors: Floats = np.array(rope.frequency_factors, dtype=np.float32)
        return plain / divisors
    match rope.scaling:
        case RopeScalingType.MODEL:
            return plain
        case RopeScalingType.LINEAR:
            return plain / np.float32(rope.factor)
        case RopeScalingType.LLAMA3:
            return _llama3(plain, rope)
    text = f"= {rope.scaling} is not supported; allowed: MODEL, LINEAR, LLAMA3"
    raise InvalidArgument.unsupported("config.rope_scaling.type", text)


def _llama3(plain: Floats, rope: RopeSpec) -> Floats:
    """Keep short wavelengths, stretch long ones by the factor, and blend between."""
    one, factor = np.float32(1), np.float32(rope.factor)
    wavelength = np.float32(2 * math.pi) / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share = (np.float32(rope.original_max_length) / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (one - share) * plain / factor + share * plain
    scaled = np.where(wavelength > rope.original_max_length / low, plain / factor, blended)
    return np.where(wavelength < rope.original_max_length / high, plain, scaled)
