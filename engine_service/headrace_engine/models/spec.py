"""Specification of a decoder-only model, independent of the format of its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.config import RopeScalingType


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    Attributes:
        theta: base of the inverse frequencies theta ** (-2 i / dim).
        dim: leading entries of a head that rotate.
        scaling: MODEL means none. LINEAR divides positions by factor; LLAMA3 and YARN scale low frequencies; DYNAMIC
            raises theta for models longer than original_max_length.
        attention_factor: multiplies cosines and sines.
        beta_fast, beta_slow, truncate: rotations between which YARN blends, and whether the ends are rounded.
        frequency_factors: divisors of the inverse frequencies, [dim / 2], from files that have them; replace scaling.
        long_factors: the same for models longer than original_max_length; empty: frequency_factors serve any length.
        length: positions of the longest sequence, on which DYNAMIC and long_factors depend; 0: not known yet.
    """

    theta: float
    dim: int
    scaling: RopeScalingType = RopeScalingType.MODEL
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    length: int = 0


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Factors of queries by position p: 1 + beta · log(1 + p // original_max_length)."""

    beta: float
    original_max_length: int


class QkNorm(StrEnum):
    """RMSNorm of queries and keys before their rotation: none, of each head, or of all heads together."""

    NONE = "NONE"
    HEAD = "HEAD"
    WHOLE = "WHOLE"


class NormKind(StrEnum):
    """Norm of attention and MLP: x · weight / √(mean(x²) + eps), or LayerNorm, which subtracts the mean before that."""

    RMS = "RMS"
    LAYER = "LAYER"


class NormPlacement(StrEnum):
    """Place of the norms of attention and MLP: before each, after each, or both."""

    BEFORE = "BEFORE"
    AFTER = "AFTER"
    AROUND = "AROUND"


class GateKind(StrEnum):
    """Activation of the gate of an MLP, whose gate and up become activation(gate) · up; without a gate, of up.

    With CLAMPED they become g · sigmoid(1.702 · g) · (1 + u), where g is the gate up to 7 and u is up from −7 to 7.
    """

    SILU = "SILU"
    GELU = "GELU"
    GELU_TANH = "GELU_TANH"
    CLAMPED = "CLAMPED"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Properties that differ from layer to layer.

    Attributes:
        window: maximum number of positions that a token attends to, itself included; None: all.
        rope: index of its rotary embedding in DecoderSpec.ropes; None: queries and keys are not rotated.
        experts: whether its MLP is a mixture of experts, as DecoderSpec.experts says.
    """

    window: int | None = None
    rope: int | None = 0
    experts: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: MLPs of which a router chooses a few for each token, those with its highest scores.

    Attributes:
        count: number of experts.
        used: number of experts of a token.
        width: intermediate size of an expert.
        normalised: whether the weights of a token's experts, softmax over the scores of all, are divided by their sum.
        shared_width: intermediate size of one more expert, of all tokens; 0: there is none.
        shared_gate: whether the output of that one is multiplied by the sigmoid of a score of its own.
        bias: whether the router and the experts add biases.
        mixer_threshold: SparseMixer's, which then gives the weights: an expert's is softmax over its own score m and
            those scores s of experts not chosen before it of which (m − s) / max(|s|, m) is at most this; 0: there is
            none.
        sigmoid: scores become sigmoids in place of softmax.
        corrected: each expert has a number that is added to its sigmoid, or to its softmax over all, where experts are
            chosen, and not to its weight.
        scale: factor of weights.
        groups: experts stand in this many groups of one size.
        groups_used: a token's experts are those of this many groups alone: of those with the highest numbers that
            experts are chosen by, or where these are corrected with the highest sums of two of them.
    """

    count: int
    used: int
    width: int
    normalised: bool
    shared_width: int = 0
    shared_gate: bool = False
    bias: bool = False
    mixer_threshold: float = 0.0
    sigmoid: bool = False
    corrected: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention: keys and values of all heads are computed of one narrow vector of each token.

    What rotates of the keys is computed beside that vector, once for all heads. Here it comes first in each head, and
    values are padded with zeros to the size of a head.

    Attributes:
        rank: entries of that vector, which is normalised.
        query_rank: entries of the vector, normalised too, that queries are computed of; None: of the hidden state.
        eps: of both norms.
        value_dim: entries of a head's values before they are padded.
        scores_scaled_by: the file's field, and its value, by which the rotary scaling scales scores too; "": none does.
    """

    rank: int
    query_rank: int | None
    eps: float
    value_dim: int
    scores_scaled_by: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Shape and variant of a decoder. What is optional changes nothing by default.

    Attributes:
        num_heads: query heads; a multiple of num_kv_heads.
        head_dim: entries of a head; not always hidden_size / num_heads.
        ropes: the rotary embeddings that layers choose from; all rotate as many entries.
        layers: one for each layer.
        max_length: maximum number of positions that the model supports.
        qkv_bias, output_bias, mlp_bias, head_bias: which linear layers add a bias; with latent attention, qkv_bias
            means those of the hidden state to narrow vectors and to the keys of all heads.
        tied_head: the output head is the embedding table.
        norm_bias: norms add a bias; of NormKind.LAYER alone.
        parallel: attention and MLP read the same norm of a layer's input, and what both say is added to that.
        parallel_norms: each of them reads a norm of its own of that input.
        mlp_gate: MLPs have a gate; without one, they are down · activation(up · x).
        sinks: each head of each layer has a score beside those of its keys, whose weight no value has.
        attention_scale: factor for products of queries and keys; None: 1 / √head_dim. With latent attention, only
            what its rotary scaling makes of that.
        attention_soft_cap, logit_soft_cap: x becomes cap · tanh(x / cap); 0: it stays.
        embedding_scale, branch_scale, logit_scale: factors of embeddings, of what attention and MLP add, and of logits.
        experts: the mixture of experts of layers that have one.
        latent: the latent attention of all layers; None: keys and values are computed of the hidden state.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    ropes: tuple[RopeSpec, ...]
    layers: tuple[LayerSpec, ...]
    max_length: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied_head: bool = False
    norm: NormKind = NormKind.RMS
    norm_bias: bool = False
    parallel: bool = False
    parallel_norms: bool = False
    mlp_gate: bool = True
    qk_norm: QkNorm = QkNorm.NONE
    norms: NormPlacement = NormPlacement.BEFORE
    gate: GateKind = GateKind.SILU
    sinks: bool = False
    attention_scale: float | None = None
    attention_soft_cap: float = 0.0
    query_scaling: QueryScaling | None = None
    embedding_scale: float = 1.0
    branch_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float = 0.0
    experts: ExpertsSpec | None = None
    latent: LatentSpec | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def rotary_dim(self) -> int:
        """Leading entries of a head that rotate."""
        return self.ropes[0].dim

    @property
    def score_scale(self) -> float:
        """Factor for products of queries and keys."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one token in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def query_width(self) -> int:
        """Width of the queries of one token in one layer."""
        return self.num_heads * self.head_dim
