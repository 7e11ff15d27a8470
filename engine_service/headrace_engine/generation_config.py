"""How a request generates, and what steps need to know of it.

A field of GenerationConfig that is None (or an empty list or mapping) was not set. Its names, meanings and ranges are
those of `proto/headrace/v1/generation.proto`; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.config import Lease


class InterruptPolicy(StrEnum):
    """What happens to a running request when memory runs out."""

    RESUME = "RESUME"
    RETURN = "RETURN"


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
