"""Applies a sequence's rules to its ids so far: which logits change, and which ids are masked."""

from __future__ import annotations

import secrets
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property

from headrace_engine.core.runner import MOST_DRAFTS, LogitChanges
from headrace_engine.sampling_params import LogitRules

_LARGEST = (2 - 2.0**-23) * 2.0**127
_SMALLEST = 2.0**-126
"""Range of normal float32 numbers."""

_PRIME = 2**61 - 1
_BASE = secrets.randbelow(_PRIME - 2**33) + 2**32
"""Random base for hashes of id sequences: callers cannot choose colliding ids, and by chance one pair in 10¹⁸ does."""


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


class Penalties:
    """Repetition, presence and frequency penalties.

    Attributes:
        repetition: the factor as backends use it.
        active: whether there is any penalty.
        ids: penalized ids, each once.
        amounts: presence and frequency penalty of each of them.
    """

    def __init__(self, rules: LogitRules, prompt_length: int) -> None:
        self._presence = rules.presence_penalty
        self._frequency = rules.frequency_penalty
        self._prompt_length = prompt_length
        self.repetition = max(_SMALLEST, array("f", [rules.repetition_penalty])[0])
        self.active = self.repetition != 1 or bool(self._presence or self._frequency)
        self.ids = array("i")
        self.amounts = array("d")
        self._counts = array("q")
        self._indexes: dict[int, int] = {}
        self._prompted = 0  # number of ids that are penalized for standing in the prompt

    def read(self, ids: Sequence[int], first: int) -> None:
        """Take the ids from `first` on."""
        begin = self._prompt_length
        if first < begin and self.repetition != 1:
            for token_id in dict.fromkeys(ids[first:begin]):
                self._index_of(token_id)
            self._prompted = len(self.ids)
        for token_id in ids[max(first, begin) :]:
            index = self._index_of(token_id)
            self._counts[index] += 1
            self.amounts[index] = self._presence + self._frequency * self._counts[index]

    def go_back(self, ids: Sequence[int]) -> None:
        """Drop the ids read last, all of them generated."""
        for token_id in reversed(ids):
            index = self._indexes[token_id]
            self._counts[index] -= 1
            count = self._counts[index]
            self.amounts[index] = self._presence + self._frequency * count if count else 0.0
            if not count and index >= self._prompted:  # It was new, so it is the last one.
                del self._indexes[token_id], self.ids[index], self.amounts[index], self._counts[index]

    def _index_of(self, token_id: int) -> int:
        index = self._indexes.setdefault(token_id, len(self.ids))
        if index == len(self.ids):
            self.ids.append(token_id)
            self.amounts.append(0.0)
            self._counts.append(0)
        return index


class RepeatedNgrams:
    """Index of the n-grams so far, by a rolling hash of all their ids except the last.

    Args:
        size: number of ids in an n-gram, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._before = size - 1
        self._dropped = pow(_BASE, size - 1, _PRIME)
        self._hash = 0
        self._length = 0
        self._last: dict[int, int | dict[int, None]] = {}
        self._recent: deque[tuple[int, int, bool]] = deque(maxlen=MOST_DRAFTS)

    def read(self, ids: Sequence[int], first: int) -> None:
        """Take the ids from `first` on."""
        for index in range(first, len(ids)):
            token_id, ends_one = ids[index], index >= self._before
            hashed = self._hash * _BASE + token_id + 1
            self._recent.append((self._hash, token_id, ends_one and self._note(token_id)))
            if ends_one:
                hashed -= (ids[index - self._before] + 1) * self._dropped
            self._hash = hashed % _PRIME
        self._length = len(ids)

    def go_back(self, count: int) -> None:
        """Drop the last `count` ids, at most MOST_DRAFTS."""
        for _ in range(count):
            self._hash, token_id, was_new = self._recent.pop()
            self._length -= 1
            if was_new:
                self._forget(token_id)

    def completing(self) -> Iterable[int]:
        """Return the ids that would repeat an n-gram."""
        known = self._last.get(self._hash) if self._length >= self._before else None
        return () if known is None else (known,) if isinstance(known, int) else known

    def _note(self, token_id: int) -> bool:
        """Add the n-gram that an id ends; return True if it was not known."""
        known = self._last.get(self._hash)
        if known is None:
            self._last[self._hash] = token_id
        elif isinstance(known, dict):
            if token_id in known:
                return False
            known[token_id] = None
        elif known == token_id:
            return False
        else:
            self._last[self._hash] = {known: None, token_id: None}
        return True

    def _forget(self, token_id: int) -> None:
        """Remove the n-gram that an id ended."""
        known = self._last[self._hash]
        if isinstance(known, dict):
            del known[token_id]
        else:
            del self._last[self._hash]


class BadWords:
    """Sequences of ids that must not be completed.

    They are looked up by the ids before their last one, with one lookup per length, so that the number of words that
    start alike hardly matters.

    Args:
        words: none of them empty.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._always: list[int] = []
        self._after: dict[int, dict[int, dict[tuple[int, ...], list[int]]]] = {}  # by last id, by length, by all ids
        for word in dict.fromkeys(map(tuple, words)):
            begin, last = word[:-1], word[-1]
            if begin:
                by_length = self._after.setdefault(begin[-1], {})
                by_length.setdefault(len(begin), {}).setdefault(begin, []).append(last)
            else:
                self._always.append(last)

    def completing(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that would complete one."""
        begun = self._after.get(ids[-1], {})
        found = (begins.get(tuple(ids[-length:]), ()) for length, begins in begun.items())
        return self._always + [last for lasts in found for last in lasts]


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
