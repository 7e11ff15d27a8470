"""How a model is installed. Made by `make fields` from `headrace/v1/runtime.proto`: ranges and defaults stand there.

A field that is None (or an empty list) was not set. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ModelFormat(StrEnum):
    """Layout of the model's files."""

    AUTO = "AUTO"
    HF = "HF"
    GGUF = "GGUF"
    HEADRACE = "HEADRACE"


class ComputeDtype(StrEnum):
    """Number format of weights and activations."""

    AUTO = "AUTO"
    FLOAT32 = "FLOAT32"
    BFLOAT16 = "BFLOAT16"
    FLOAT16 = "FLOAT16"


class ComputeUnit(StrEnum):
    """Kind of device that computes."""

    CUDA = "CUDA"
    CPU = "CPU"
    CPU_NUMA = "CPU_NUMA"


class KvCacheMode(StrEnum):
    """How keys and values are stored."""

    DEFAULT = "DEFAULT"
    INT8 = "INT8"
    UINT4 = "UINT4"


class WeightQuant(StrEnum):
    """Quantisation of weights at install."""

    NONE = "NONE"
    INT8 = "INT8"
    INT4 = "INT4"


class ActivationQuant(StrEnum):
    """Quantisation of activations at run time."""

    NONE = "NONE"
    INT8 = "INT8"
    FP8 = "FP8"


class RopeScalingType(StrEnum):
    """Method that stretches rotary position embeddings."""

    MODEL = "MODEL"
    LINEAR = "LINEAR"
    DYNAMIC = "DYNAMIC"
    YARN = "YARN"
    LLAMA3 = "LLAMA3"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary scaling and its factors; a factor that the type does not use must be unset."""

    type: RopeScalingType | None = None
    factor: float | None = None
    original_max_length: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a request is kept while nobody is attached to it or asks for it."""

    running: float | None = None
    ended: float | None = None


class Speculation(StrEnum):
    """Where drafted ids come from, which are checked together in one step."""

    OFF = "OFF"
    GRAMMAR = "GRAMMAR"
    NGRAM = "NGRAM"
    DRAFT = "DRAFT"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that requests may name."""

    name: str = ""
    path: str = ""


class TensorParallelMode(StrEnum):
    """How the ranks of a model share its matrices."""

    EXACT = "EXACT"
    REDUCED = "REDUCED"


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How a model is installed."""

    model_name: str = ""
    model_path: str = ""
    file_prefix: str = ""
    revision: str = ""
    hub: str = ""
    format: ModelFormat | None = None
    dtype: ComputeDtype | None = None
    compute_unit: ComputeUnit | None = None
    device_list: tuple[int, ...] = ()
    num_threads: int | None = None
    max_batch: int | None = None
    max_length: int | None = None
    max_prefill_tokens: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    num_host_blocks: int | None = None
    kv_cache_mode: KvCacheMode | None = None
    enable_prefix_cache: bool | None = None
    prefix_cache_ttl: float | None = None
    memory_ratio: float | None = None
    weight_quant: WeightQuant | None = None
    weight_quant_group_size: int | None = None
    activation_quant: ActivationQuant | None = None
    rope_scaling: RopeScaling | None = None
    logn_attention: bool | None = None
    chat_template: str | None = None
    max_waiting: int | None = None
    drain_limit: float | None = None
    default_lease: Lease | None = None
    max_lease: float | None = None
    default_seed: int | None = None
    max_result_bytes: int | None = None
    speculation: Speculation | None = None
    max_drafts: int | None = None
    draft_model: str = ""
    adapters: tuple[Adapter, ...] = ()
    lora_max_num: int | None = None
    lora_max_rank: int | None = None
    tensor_parallel: int | None = None
    tensor_parallel_mode: TensorParallelMode | None = None
