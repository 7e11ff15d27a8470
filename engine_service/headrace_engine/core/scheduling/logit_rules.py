"""The rules of a sequence that depend on its ids so far: penalties, repeated n-grams, bad words."""

from __future__ import annotations

import secrets
from array import array
from collections import deque
from collections.abc import Iterable, Sequence

from headrace_engine.core.runner import MOST_DRAFTS
from headrace_engine.sampling_params import LogitRules

_SMALLEST = 2.0**-126
"""The smallest normal number of float32."""

_PRIME = 2**61 - 1
_BASE = secrets.randbelow(_PRIME - 2**33) + 2**32
"""Random base for hashes of id sequences: callers cannot choose colliding ids, and by chance one pair in 10¹⁸ does."""


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
