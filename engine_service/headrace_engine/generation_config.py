"""How a request generates. Made by `make fields` from `headrace/v1/generation.proto`: ranges and defaults stand there.

A field that is None (or an empty list or mapping) was not set. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.config import Lease
from headrace_engine.request_parts import MediaItem, ResponseFormat


class BeamStopping(StrEnum):
    """When a beam search ends before all of its beams have the maximum length."""

    HEURISTIC = "HEURISTIC"
    FIRST = "FIRST"
    NEVER = "NEVER"


@dataclass(frozen=True, slots=True)
class LogitsProcessor:
    """Code that the engine's operator started it with, which changes the logits that tokens are sampled from."""

    name: str = ""
    arguments: tuple[float, ...] = ()


class InterruptPolicy(StrEnum):
    """Policy for a running request when memory runs out."""

    RESUME = "RESUME"
    RETURN = "RETURN"


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How to generate."""

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
    beam_stopping: BeamStopping | None = None
    length_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    lora_name: str | None = None
    mm_info: tuple[MediaItem, ...] = ()
    enable_tensors_from_model_inference: bool | None = None
    skip_special_tokens: bool | None = None
    use_prefix_cache: bool | None = None
    cache_salt: str | None = None
    use_speculation: bool | None = None
    priority: int | None = None
    deadline: float | None = None
    interrupt_policy: InterruptPolicy | None = None
    lease: Lease | None = None
