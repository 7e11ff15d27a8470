"""Applies a sequence's rules to its ids so far: which logits change, and which ids are masked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property

from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.scheduling.logit_rules import BadWords, Penalties, RepeatedNgrams
from headrace_engine.sampling_params import LogitRules

_LARGEST = (2 - 2.0**-23) * 2.0**127
"""The largest number of float32."""


class RuleTables:
    """The parts of rules that no id changes. They may be large, so they are made once, when they are needed."""

    def __init__(self, rules: LogitRules) -> None:
        self._rules = rules

    @cached_property
    def allowed(self) -> array[int] | None:
        """Bit mask of the allowed ids; None: all are."""
        return bit_mask(self._rules.allowed_token_ids) if self._rules.allowed_token_ids else None

    @cached_property
    def bad_words(self) -> BadWords | None:
        """Index of the bad words; None: there are none."""
        return BadWords(self._rules.bad_words) if self._rules.bad_words else None

    @cached_property
    def biased(self) -> array[int]:
        """Ids with a bias."""
        return array("i", self._rules.logit_bias)

    @cached_property
    def biases(self) -> array[float]:
        """The bias of each of them."""
        return array("d", [min(max(bias, -_LARGEST), _LARGEST) for bias in self._rules.logit_bias.values()])


class LogitState:
    """Follows the ids of one sequence incrementally: the cost of a step depends only on its new ids.

    The state derives from the ids alone: it is the same after a preemption, in another core, and on another engine.
    It also follows ids that are only drafted, and goes back.

    Args:
        rules: the rules of the sequence.
        prompt_length: number of its ids that are the prompt's.
        tables: those of the rules, which the sequences of a request share; None: make them.

    Attributes:
        changes: the changes for the ids last passed to `follow`.
    """

    def __init__(self, rules: LogitRules, prompt_length: int, tables: RuleTables | None = None) -> None:
        tables = tables or RuleTables(rules)
        self._allowed = tables.allowed
        self._penalties = Penalties(rules, prompt_length)
        self._ngrams = RepeatedNgrams(rules.no_repeat_ngram_size) if rules.no_repeat_ngram_size else None
        self._bad_words = tables.bad_words
        self._known = 0
        self.changes = LogitChanges(
            repetition=self._penalties.repetition,
            penalized=self._penalties.ids,
            penalties=self._penalties.amounts,
            biased=tables.biased,
            biases=tables.biases,
            allowed=self._allowed,
        )

    def follow(self, ids: Sequence[int], guided: array[int] | None = None) -> list[int]:
        """Update for the sequence's ids, of which only the last ones are new; return the ids to mask.

        Args:
            guided: bit mask of the ids that its grammar allows next; None: the sequence is unguided.
        """
        if self._penalties.active:
            self._penalties.read(ids, self._known)
        masked: list[int] = []
        if self._bad_words is not None:
            masked += self._bad_words.completing(ids)
        if self._ngrams is not None:
            self._ngrams.read(ids, self._known)
            masked += self._ngrams.completing()
        if guided is not None:
            self.changes.allowed = guided if self._allowed is None else _both(guided, self._allowed)
        self._known = len(ids)
        return masked

    def go_back(self, ids: Sequence[int], length: int) -> None:
        """Restore the state after the first `length` of the ids that were followed, all of them generated."""
        if self._penalties.active:
            self._penalties.go_back(ids[length : self._known])
        if self._ngrams is not None:
            self._ngrams.go_back(self._known - length)
        self._known = min(self._known, length)


def _both(first: array[int], second: array[int]) -> array[int]:
    """Return the intersection of two masks, cut to the shorter one."""
    size = min(len(first), len(second)) * first.itemsize
    shared = int.from_bytes(first.tobytes()[:size], "little") & int.from_bytes(second.tobytes()[:size], "little")
    return array("I", shared.to_bytes(size, "little"))


def bit_mask(ids: Iterable[int]) -> array[int]:
    """Return a bit mask of the ids, as in LogitChanges."""
    kept = set(ids)
    words = array("I", bytes(4 * (max(kept) // 32 + 1)))
    for token_id in kept:
        words[token_id // 32] |= 1 << token_id % 32
    return words
