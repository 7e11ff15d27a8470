"""What callers configure: how a model is installed, and how a request generates.

A field that is None (or an empty list or mapping) was not set. Field names, meanings and ranges are those of
`proto/headrace/v1/runtime.proto` and `generation.proto`; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ComputeUnit(StrEnum):
    """Kind of device that computes."""

    CUDA = "CUDA"
    CPU = "CPU"
    CPU_NUMA = "CPU_NUMA"


class ModelFormat(StrEnum):
    """Layout of a model's files."""

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


class KvCacheMode(StrEnum):
    """How keys and values are stored."""

    DEFAULT = "DEFAULT"
    INT8 = "INT8"
    UINT4 = "UINT4"


class WeightQuant(StrEnum):
    """Quantisation of weights at load."""

    NONE = "NONE"
    INT8 = "INT8"
    INT4 = "INT4"


WEIGHT_GROUPS = {WeightQuant.INT8: 0, WeightQuant.INT4: 128}
"""Weights that share a scale, where a config does not say; 0: one a row."""


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


class InterruptPolicy(StrEnum):
    """What happens to a running request when memory runs out."""

    RESUME = "RESUME"
    RETURN = "RETURN"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary scaling and its factors; a factor that the type does not use is None."""

    type: RopeScalingType | None = None
    factor: float | None = None
    original_max_length: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that requests may name."""

    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """Seconds that a request is kept while nobody is there: running, and ended. 0 = for ever."""

    running: float | None = None
    ended: float | None = None


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
    adapters: tuple[Adapter, ...] = ()
    lora_max_num: int | None = None
    lora_max_rank: int | None = None
    tensor_parallel: int | None = None


class ResponseFormatKind(StrEnum):
    """What guided output must match; the names of the oneof's fields."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """Guided decoding: the output must match.

    Attributes:
        text: the schema, expression or grammar; empty for the other kinds.
        choices: the strings of CHOICE.
        ebnf: GRAMMAR is in EBNF rather than Lark.
    """

    kind: ResponseFormatKind
    text: str = ""
    choices: tuple[str, ...] = ()
    ebnf: bool = False


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One piece of media: an encoded file, or ready embeddings as raw bytes with their shape and dtype name."""

    placeholder_id: int | None = None
    data: bytes = b""
    mime_type: str = ""
    embedding_shape: tuple[int, ...] = ()
    embedding_dtype: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LogitsProcessor:
    """A logits processor that the engine was started with, by its name, and the numbers that it is given."""

    name: str = ""
    arguments: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How a request generates."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None
    n: int | None = None
    stop_words: tuple[str, ...] = ()
    logprobs: bool | None = None
    top_logprobs: int | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    early_stopping: bool | None = None
    ignore_eos: bool | None = None
    eos_token_id: tuple[int, ...] = ()
    stop_words_ids: tuple[tuple[int, ...], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[str, ...] = ()
    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    suppress_repetition_in_generation: bool | None = None
    best_of: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    lora_name: str | None = None
    mm_info: tuple[MediaItem, ...] = ()
    enable_tensors_from_model_inference: bool | None = None
    skip_special_tokens: bool | None = None
    use_prefix_cache: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    deadline: float | None = None
    interrupt_policy: InterruptPolicy | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a step needs to know to draw a token of one sequence.

    Attributes:
        temperature: divides the logits; 0 takes the most likely id, and then the other numbers do not count.
        top_k: keep the k most likely and ties with the k-th; 0 keeps all.
        top_p: keep the smallest set whose probability reaches this, ties at its edge included; 1 keeps all.
        min_p: keep ids at least this share as likely as the most likely.
        seed: key of the random numbers, uint64.
        logprobs: return the log-probability of the token.
        top_logprobs: return so many of the most likely ids, with their log-probabilities.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class LogitRules:
    """How the ids of a sequence so far, and its config, change the logits that its next token is drawn from.

    Attributes:
        repetition_penalty: multiplies negative logits, and divides others, of ids in prompt and generated; 1: off.
        presence_penalty: taken from the logits of ids that were generated.
        frequency_penalty: taken from the logit of an id each time that it was generated.
        no_repeat_ngram_size: no sequence of so many ids comes twice in prompt and generated; 0: off.
        bad_words: sequences of ids of which none is completed; one may begin in the prompt.
        logit_bias: added to logits, by id.
        allowed_token_ids: only these ids may be drawn; empty: all may.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
