"""What a sequence's ids so far make of its rules: which logits change, and which ids may not come next."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence

from headrace_engine.core.runner import LogitChanges
from headrace_engine.guided.guide import Guide
from headrace_engine.sampling_params import LogitRules

_LARGEST = (2 - 2.0**-23) * 2.0**127
_SMALLEST = 2.0**-126
"""Of normal float32 numbers."""

_PRIME = 2**61 - 1
_BASE = secrets.randbelow(_PRIME - 2**33) + 2**32
"""Of the hashes of id sequences: nobody can choose ids whose hashes collide, and by chance one pair in 10¹⁸ does."""


class LogitState:
    """Follows the ids of one sequence, so that a step costs what its new ids do.

    Everything derives from the ids: it is the same after a preemption, in another core, and on another engine.

    Args:
        rules: of the sequence.
        prompt_length: how many of its ids are the prompt's.
        guide: follows the sequence by itself, as every one of its ids is drawn; None: it is free.

    Attributes:
        changes: as of the ids that `follow` was given last.
    """

    def __init__(self, rules: LogitRules, prompt_length: int, guide: Guide | None = None) -> None:
        self._guide = guide
        self._allowed = bit_mask(rules.allowed_token_ids) if rules.allowed_token_ids else None
        self._penalties = Penalties(rules, prompt_length)
        self._ngrams = RepeatedNgrams(rules.no_repeat_ngram_size) if rules.no_repeat_ngram_size else None
        self._bad_words = BadWords(rules.bad_words) if rules.bad_words else None
        self._known = 0
        self.changes = LogitChanges(
            repetition=self._penalties.repetition,
            penalized=self._penalties.ids,
            penalties=self._penalties.amounts,
            biased=array("i", rules.logit_bias),
            biases=array("d", [min(max(bias, -_LARGEST), _LARGEST) for bias in rules.logit_bias.values()]),
            allowed=self._allowed if guide is None else guide.allowed,
        )

    def follow(self, ids: Sequence[int]) -> list[int]:
        """Take the sequence's ids, of which none but the last ones are new, and tell which may not come next."""
        if self._penalties.active:
            self._penalties.read(ids, self._known)
        masked: list[int] = []
        if self._bad_words is not None:
            masked += self._bad_words.completing(ids)
        if self._ngrams is not None:
            self._ngrams.read(ids, self._known)
            masked += self._ngrams.completing()
        if self._guide is not None and self._allowed is not None:
            self.changes.allowed = _both(self._guide.allowed, self._allowed)
        self._known = len(ids)
        return masked


class Penalties:
    """Repetition, presence and frequency penalties.

    Attributes:
        repetition: the factor as backends use it.
        active: there is a penalty.
        ids: that have one, each once.
        amounts: what presence and frequency take from each of them.
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
        self._places: dict[int, int] = {}

    def read(self, ids: Sequence[int], first: int) -> None:
        """Take the ids from `first` on."""
        begin = self._prompt_length
        if first < begin and self.repetition != 1:
            for token_id in dict.fromkeys(ids[first:begin]):
                self._place(token_id)
        for token_id in ids[max(first, begin) :]:
            place = self._place(token_id)
            self._counts[place] += 1
            self.amounts[place] = self._presence + self._frequency * self._counts[place]

    def _place(self, token_id: int) -> int:
        place = self._places.setdefault(token_id, len(self.ids))
        if place == len(self.ids):
            self.ids.append(token_id)
            self.amounts.append(0.0)
            self._counts.append(0)
        return place


class RepeatedNgrams:
    """Knows each n-gram so far by the hash of all of its ids but the last, which rolls on with every id.

    Args:
        size: ids of an n-gram, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._before = size - 1
        self._dropped = pow(_BASE, size - 1, _PRIME)
        self._hash = 0
        self._length = 0
        self._last: dict[int, int | dict[int, None]] = {}

    def read(self, ids: Sequence[int], first: int) -> None:
        """Take the ids from `first` on."""
        for place in range(first, len(ids)):
            token_id = ids[place]
            hashed = self._hash * _BASE + token_id + 1
            if place >= self._before:
                self._note(token_id)
                hashed -= (ids[place - self._before] + 1) * self._dropped
            self._hash = hashed % _PRIME
        self._length = len(ids)

    def completing(self) -> Iterable[int]:
        """Ids that would complete an n-gram that is there already."""
        known = self._last.get(self._hash) if self._length >= self._before else None
        return () if known is None else (known,) if isinstance(known, int) else known

    def _note(self, token_id: int) -> None:
        known = self._last.setdefault(self._hash, token_id)
        if isinstance(known, dict):
            known[token_id] = None
        elif known != token_id:
            self._last[self._hash] = {known: None, token_id: None}


class BadWords:
    """Sequences of ids of which none may be completed.

    They are found by what stands before their last id, one look for each length, so that it hardly counts how many
    begin alike.

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
        """Ids that would complete one."""
        begun = self._after.get(ids[-1], {})
        found = (begins.get(tuple(ids[-length:]), ()) for length, begins in begun.items())
        return self._always + [last for lasts in found for last in lasts]


def _both(first: array[int], second: array[int]) -> array[int]:
    """The bits that two masks share, as far as the shorter one goes."""
    size = min(len(first), len(second)) * first.itemsize
    shared = int.from_bytes(first.tobytes()[:size], "little") & int.from_bytes(second.tobytes()[:size], "little")
    return array("I", shared.to_bytes(size, "little"))


def bit_mask(ids: Iterable[int]) -> array[int]:
    """A bit for each of the ids, as LogitChanges has them."""
    kept = set(ids)
    words = array("I", bytes(4 * (max(kept) // 32 + 1)))
    for token_id in kept:
        words[token_id // 32] |= 1 << token_id % 32
    return words
