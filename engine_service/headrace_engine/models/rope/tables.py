"""Inverse frequencies and tables of the rotary embedding, by the formulas of the models' training code.

Every step is rounded to float32 as there: at position 10⁵, one rounding more or less changes an angle by 0.01.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.config import RopeScalingType
from headrace_engine.models.spec import DecoderSpec, QueryScaling, RopeSpec

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


@dataclass(frozen=True, slots=True)
class PositionTables:
    """What a decoder computes from positions alone.

    Attributes:
        rotary: tables of each of its rotary embeddings.
        query_scales: factors of queries, float32 [positions]; None: there are none.
    """

    rotary: tuple[RotaryTables, ...]
    query_scales: Floats | None = None

    @property
    def length(self) -> int:
        """Number of positions."""
        return len(self.rotary[0].cos)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        scales = 0 if self.query_scales is None else self.query_scales.nbytes
        return scales + sum(tables.nbytes for tables in self.rotary)


def position_tables(spec: DecoderSpec, length: int) -> PositionTables:
    """Return the tables of a decoder for the positions below length."""
    scales = query_scales(spec.query_scaling, length) if spec.query_scaling else None
    return PositionTables(tuple(rotary_tables(rope, length) for rope in spec.ropes), scales)


def rotary_tables(rope: RopeSpec, length: int) -> RotaryTables:
    """Return the tables of the positions below length."""
    frequencies = inverse_frequencies(rope)
    cos, sin = (np.empty((length, len(frequencies)), dtype=np.float32) for _ in range(2))
    for begin in range(0, length, _AT_ONCE):
        end = min(begin + _AT_ONCE, length)
        # The product is rounded to float32, as in the models' training code; the rest is exact.
        angles = np.outer(np.arange(begin, end, dtype=np.float32), frequencies).astype(np.float64)
        cos[begin:end] = np.cos(angles) * rope.attention_factor
        sin[begin:end] = np.sin(angles) * rope.attention_factor
    return RotaryTables(cos, sin)


def query_scales(scaling: QueryScaling, length: int) -> Floats:
    """Return the factors of queries at positions below length."""
    lengths = np.floor(np.arange(length) / scaling.original_max_length)
    scales: Floats = (1 + scaling.beta * np.log1p(lengths)).astype(np.float32)
    return scales


def inverse_frequencies(rope: RopeSpec) -> Floats:
    """Return radians per position, [dim / 2]."""
    powers = _powers(rope.theta, rope.dim)
    plain: Floats = np.float32(1) / powers
    is_long = rope.length > rope.original_max_length
    if factors := (is_long and rope.long_factors) or rope.frequency_factors:
        return np.float32(1) / (np.array(factors, dtype=np.float32) * powers)
    match rope.scaling:
        case RopeScalingType.LINEAR:
            return plain / np.float32(rope.factor)
        case RopeScalingType.LLAMA3:
            return _llama3(plain, rope)
        case RopeScalingType.YARN:
            return _yarn(plain, powers, rope)
        case RopeScalingType.DYNAMIC if is_long:
            return np.float32(1) / _powers(_raised_theta(rope), rope.dim)
    return plain


def _powers(theta: float, dim: int) -> Floats:
    exponents = (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)).astype(np.float64)
    powers: Floats = np.power(theta, exponents).astype(np.float32)
    return powers


def _llama3(plain: Floats, rope: RopeSpec) -> Floats:
    """Keep short wavelengths, stretch long ones by the factor, and blend between."""
    one, factor = np.float32(1), np.float32(rope.factor)
    wavelength = np.float32(2 * math.pi) / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share = (np.float32(rope.original_max_length) / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (one - share) * plain / factor + share * plain
    scaled = np.where(wavelength > rope.original_max_length / low, plain / factor, blended)
    blend: Floats = np.where(wavelength < rope.original_max_length / high, plain, scaled)
    return blend


def _yarn(plain: Floats, powers: Floats, rope: RopeSpec) -> Floats:
    """Keep frequencies that rotate beta_fast times within the original length, stretch those below beta_slow."""
    low, high = (_dimension(rope, rotations) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high += 0.001 if low == high else 0
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept: Floats = np.float32(1) - np.clip(ramp, 0, 1)
    stretched: Floats = np.float32(1) / (np.float32(rope.factor) * powers)
    blend: Floats = stretched * (np.float32(1) - kept) + plain * kept
    return blend


def _dimension(rope: RopeSpec, rotations: float) -> float:
    """Return the index of the frequency that rotates this often within the original length."""
    return rope.dim * math.log(rope.original_max_length / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))


def _raised_theta(rope: RopeSpec) -> float:
    stretch = rope.factor * rope.length / rope.original_max_length - (rope.factor - 1)
    return rope.theta * float(stretch ** (rope.dim / (rope.dim - 2)))
