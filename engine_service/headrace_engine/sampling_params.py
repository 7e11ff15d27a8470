"""Sampling parameters of a sequence, as steps need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a step samples a token of one sequence: a GenerationConfig's fields of the same names, all of them set.

    With temperature 0 it takes the most likely id, and the other numbers do not count.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = 0


RANDOM = tuple(each.name for each in fields(SamplingParams) if not each.name.endswith("logprobs"))
"""Fields that have no effect where the most likely token is taken."""


@dataclass(frozen=True, slots=True)
class LogitRules:
    """How the ids of a sequence so far, and its config, change the logits that its next token is sampled from.

    Fields are a GenerationConfig's of the same names, but for `bad_words`: sequences of ids never completed.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
