"""Specification of a decoder-only model, independent of the format of its files."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.config import RopeScalingType


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    Attributes:
        theta: base of the inverse frequencies theta ** (-2 i / dim).
        dim: leading entries of a head that rotate.
        scaling: MODEL means none. LINEAR divides positions by factor; LLAMA3 scales low frequencies piecewise.
        frequency_factors: divisors of the inverse frequencies, [dim / 2], from files that have them; replace scaling.
    """

    theta: float
    dim: int
    scaling: RopeScalingType = RopeScalingType.MODEL
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 0
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Shape and variant of a decoder.

    Attributes:
        num_heads: query heads; a multiple of num_kv_heads.
        head_dim: entries of a head; not always hidden_size / num_heads.
        qkv_bias, output_bias, mlp_bias: which linear layers add a bias.
        tied_head: the output head is the embedding table.
        windows: by layer, maximum number of positions that a token attends to, itself included; None: all.
        max_length: maximum number of positions that the model supports.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeSpec
    max_length: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tied_head: bool = False
    windows: tuple[int | None, ...] = ()

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one token in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def query_width(self) -> int:
        """Width of the queries of one token in one layer."""
        return self.num_heads * self.head_dim
