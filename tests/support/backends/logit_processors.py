"""Rules of a sequence's logits, with the processors of transformers as the reference.

Each case has two forms: the rules of the engine, and a function from (ids, logits, prompt length) to the logits that
must result. Presence and frequency penalties, which transformers does not have, are one line of float64 here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.scheduling.logit_state import LogitState
from headrace_engine.sampling_params import LogitRules, SamplingParams
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

Reference = Callable[[list[int], Tensor, int], Tensor]
"""Function of ids, the model's logits [vocab] and the length of the prompt; returns the logits to sample from."""

VOCAB = 40
EOS = (7, 11)


@dataclass(frozen=True)
class Case:
    """Rules and their expected effect. `masks` returns further masked ids, for ids and the length of the prompt."""

    name: str
    rules: LogitRules
    reference: Reference
    masks: Callable[[Sequence[int], int], tuple[int, ...]] = lambda ids, prompt: ()


def processed(*processors: LogitsProcessor) -> Reference:
    """Return the reference of some processors of transformers, applied in order."""

    def run(ids: list[int], logits: Tensor, prompt_length: int) -> Tensor:
        scores = logits.unsqueeze(0)
        for processor in processors:
            scores = processor(torch.tensor([ids]), scores)
        return scores.squeeze(0)

    return run


def counted(presence: float, frequency: float) -> Reference:
    """Return the reference of presence and frequency penalties."""

    def run(ids: list[int], logits: Tensor, prompt_length: int) -> Tensor:
        counts = torch.bincount(torch.tensor(ids[prompt_length:], dtype=torch.int64), minlength=len(logits))
        return (logits.double() - torch.where(counts > 0, presence + frequency * counts.double(), 0.0)).float()

    return run


def only(allowed: Sequence[int]) -> Reference:
    """Return the reference of allowed ids."""

    def run(ids: list[int], logits: Tensor, prompt_length: int) -> Tensor:
        kept = torch.full_like(logits, -torch.inf)
        kept[list(allowed)] = logits[list(allowed)]
        return kept

    return run


def chained(*references: Reference) -> Reference:
    """Return a reference that applies references in order."""

    def run(ids: list[int], logits: Tensor, prompt_length: int) -> Tensor:
        for reference in references:
            logits = reference(ids, logits, prompt_length)
        return logits

    return run


def minimum(min_length: int) -> Callable[[Sequence[int], int], tuple[int, ...]]:
    """Mask EOS ids up to a number of tokens, prompt and generated."""
    return lambda ids, prompt: EOS if len(ids) < min_length else ()


def minimum_new(min_new: int) -> Callable[[Sequence[int], int], tuple[int, ...]]:
    """Mask EOS ids up to a number of generated tokens."""
    return lambda ids, prompt: EOS if len(ids) - prompt < min_new else ()


def _min_new(min_new: int) -> Reference:
    eos = list(EOS)
    return lambda ids, logits, prompt: processed(MinNewTokensLengthLogitsProcessor(prompt, min_new, eos))(
        ids, logits, prompt
    )


BAD_WORDS = [[3], [9], [1, 2], [5, 5], [2, 1, 4], [8, 1, 2, 6], [0, 39]]
BIASES = {0: 2.5, 3: -100.0, 17: 0.125, 39: 1e4}
ALLOWED = (1, 2, 3, 5, 8, 13, 21, 34, 39)


def _bias(biases: dict[int, float]) -> SequenceBiasLogitsProcessor:
    return SequenceBiasLogitsProcessor({(token_id,): value for token_id, value in biases.items()})


CASES = [
    *(
        Case(f"repetition {p}", LogitRules(repetition_penalty=p), processed(RepetitionPenaltyLogitsProcessor(p)))
        for p in (1.3, 0.7, 2.0, 1.05)
    ),
    Case("presence", LogitRules(presence_penalty=1.7), counted(1.7, 0)),
    Case("frequency", LogitRules(frequency_penalty=-0.3), counted(0, -0.3)),
    Case("both", LogitRules(presence_penalty=-0.55, frequency_penalty=0.21), counted(-0.55, 0.21)),
    *(
        Case(f"n-gram {n}", LogitRules(no_repeat_ngram_size=n), processed(NoRepeatNGramLogitsProcessor(n)))
        for n in (1, 2, 3, 5, 1000)
    ),
    Case(
        "bad words",
        LogitRules(bad_words=tuple(map(tuple, BAD_WORDS))),
        processed(NoBadWordsLogitsProcessor(BAD_WORDS)),
    ),
    Case("bias", LogitRules(logit_bias=BIASES), processed(_bias(BIASES))),
    Case("allowed", LogitRules(allowed_token_ids=ALLOWED), only(ALLOWED)),
    Case("min length", LogitRules(), processed(MinLengthLogitsProcessor(24, list(EOS))), minimum(24)),
    Case("min new tokens", LogitRules(), _min_new(6), minimum_new(6)),
    Case(
        "all of them",
        LogitRules(1.2, 0.3, 0.1, 2, tuple(map(tuple, BAD_WORDS)), BIASES, ALLOWED),
        chained(
            processed(RepetitionPenaltyLogitsProcessor(1.2)),
            counted(0.3, 0.1),
            processed(NoRepeatNGramLogitsProcessor(2)),
            processed(MinLengthLogitsProcessor(24, list(EOS))),
            processed(NoBadWordsLogitsProcessor(BAD_WORDS)),
            processed(_bias(BIASES)),
            only(ALLOWED),
        ),
        minimum(24),
    ),
]


def random_history(seed: int) -> tuple[list[int], int]:
    """Return ids from a small part of the vocabulary, so that they repeat, and how many of them are the prompt's."""
    draws = random.Random(seed)
    ids = draws.choices(range(12), k=draws.randrange(1, 40))
    return ids, draws.randint(1, len(ids))


def ruled_step(
    case: Case, ids: Sequence[int], prompt_length: int, sampling: SamplingParams, masked: Sequence[int] = ()
) -> SequenceStep:
    """Return a step that samples by the case's rules, whose ids came one by one.

    Args:
        masked: further masked ids.
    """
    state = LogitState(case.rules, prompt_length)
    for length in range(prompt_length, len(ids) + 1):
        forbidden = state.follow(ids[:length])
    every = (*masked, *case.masks(ids, prompt_length), *forbidden)
    return SequenceStep([0], 0, [0], sampling, masked_ids=every, changes=state.changes)
