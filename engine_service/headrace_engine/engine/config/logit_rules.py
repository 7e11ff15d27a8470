"""The fields of a generation config that change logits: checks, and the rules that are sent to the core."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from headrace_engine.engine.config.field_checks import check_ids, check_symbols
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.sampling_params import LogitRules

_NO_RULES = LogitRules()


def check_logit_fields(sent: GenerationConfig, vocab_size: int, holes: Collection[int] = ()) -> None:
    """Refuse empty or too many bad words, ids that the model does not have, and biases that are not finite.

    Raises:
        InvalidArgument: naming the field.
    """
    check_symbols(sent, "bad_words", "bad_words_ids")
    for number, ids in enumerate(sent.bad_words_ids):
        field = f"config.bad_words_ids[{number}]"
        if not ids:
            raise InvalidArgument.field(field, "is empty: name at least one id")
        check_ids(field, ids, vocab_size, holes)
    for number, word in enumerate(sent.bad_words):
        if not word:
            raise InvalidArgument.field(f"config.bad_words[{number}]", "is empty: every text contains it")
    check_ids("config.allowed_token_ids", sent.allowed_token_ids, vocab_size, holes)
    check_ids("config.logit_bias", sent.logit_bias, vocab_size, holes)
    for token_id, bias in sent.logit_bias.items():
        if not math.isfinite(bias):
            text = f"= {bias} for id {token_id} is not finite; use bad_words_ids or allowed_token_ids to rule ids out"
            raise InvalidArgument.field("config.logit_bias", text)


def rules_of(
    effective: GenerationConfig, spelled: Sequence[tuple[int, ...]], vocab_size: int, holes: Collection[int] = ()
) -> LogitRules | None:
    """Return the rules for the core; None: no field changes the logits.

    Args:
        spelled: the ids that spell the config's bad_words.
        holes: ids that the tokenizer does not define; they are never sampled.
    """
    words = (word for word in (*effective.bad_words_ids, *spelled) if _may_come(word, vocab_size))
    suppressed = effective.suppress_repetition_in_generation
    rules = LogitRules(
        repetition_penalty=1.0 if suppressed else effective.repetition_penalty or 1.0,
        presence_penalty=effective.presence_penalty or 0.0,
        frequency_penalty=effective.frequency_penalty or 0.0,
        no_repeat_ngram_size=effective.no_repeat_ngram_size or 0,
        bad_words=(*words, *((hole,) for hole in sorted(holes))),
        logit_bias=effective.logit_bias,
        allowed_token_ids=effective.allowed_token_ids,
    )
    return None if rules == _NO_RULES else rules


def _may_come(word: tuple[int, ...], vocab_size: int) -> bool:
    """False for words with ids that the model does not have, which its own files may name."""
    return bool(word) and min(word) >= 0 and max(word) < vocab_size
