"""The merges of a SentencePiece vocabulary, which has only a score for each piece.

Merges join the best pair of a text first. So of the ways to cut a piece in two most are never used, and those that are
found to be are left out: a pair cannot come to stand side by side where, before the later of its two parts was joined,
what then stood on both sides of the cut was a better pair than the parts of that part.

A vocabulary has hundreds of thousands of pieces and millions of ways to cut them in two, so all of them are looked up
at once, by hashes of their characters: h(c₀ … cₙ) = Σ (cᵢ + 1) · Bⁱ modulo 2⁶⁴. The hash of every part of a piece
follows from sums over the piece. Different texts have the same hash by chance alone, once in millions of vocabularies;
where a file was made so, the library finds that its merges do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 2**16
"""Maximum characters of a piece: a thousand times those of any vocabulary."""

_PORTION = 2**18
"""Characters whose hashes are in memory at a time, besides those of one piece."""

_MOST_ROUNDS = 2_000
"""Rounds in which pairs are judged; the rest is kept. Gemma 3's 262,144 pieces take 136."""

_BASE = 0x9E37_79B9_7F4A_7C15
_NO_KEY = np.uint64(2**64 - 1)
_SPREAD = np.uint64(0xD6E8_FEB8_6659_FD93)
_BUCKET_BITS = 20

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def merges_from_scores(
    tokens: Sequence[str], scores: NDArray[np.float64], joins: NDArray[np.bool_], atoms: Sequence[int] = ()
) -> tuple[list[str], list[str]]:
    """Return both parts of the pairs that join to a third, best score of that first, but for some that no text needs.

    Among equal scores, the longer left part comes first, then the longer right part.

    Args:
        tokens: the pieces, by id.
        scores: of each piece.
        joins: whether a piece may be the result of a merge.
        atoms: ids of pieces that stand for a single character of a text, whatever their own text is.

    Raises:
        ValueError: a piece has more than LONGEST_PIECE characters.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    hashes = np.concatenate([portion.pieces() for portion in _portions(tokens, lengths)])
    table = _Table(hashes)
    found = [portion.cuts(table, joins) for portion in _portions(tokens, lengths)]
    whole, left, right = (np.concatenate(part) for part in zip(*found, strict=True))
    vocabulary = _Vocabulary(table, hashes, lengths, _ranks(scores), joins)
    if not table.has_equals:
        used = _used(vocabulary, whole, left, right, atoms)
        whole, left, right = whole[used], left[used], right[used]
    order = np.argsort(vocabulary.keys(whole, left, right), kind="stable")
    texts = np.array(tokens, object)
    return texts[left[order]].tolist(), texts[right[order]].tolist()


def _ranks(scores: NDArray[np.float64]) -> Hashes:
    """Return numbers that order scores from the best on, and leave their lower 33 bits to lengths."""
    _, places = np.unique(-scores, return_inverse=True)
    return (places.astype(np.uint64) + np.uint64(1)) << np.uint64(33)


class _Table:
    """Finds ids by the hashes of their pieces.

    Args:
        hashes: of each piece.

    Attributes:
        has_equals: two pieces have the same hash.
    """

    def __init__(self, hashes: Hashes) -> None:
        spread = hashes * _SPREAD
        self._ids = np.argsort(spread)
        self._sorted = spread[self._ids]
        counts = np.bincount((spread >> np.uint64(64 - _BUCKET_BITS)).view(np.int64), minlength=2**_BUCKET_BITS)
        # The first entry of a bucket is nearly always the only one; a search past it is rare.
        self._firsts = np.minimum(np.cumsum(counts) - counts, len(hashes) - 1).astype(np.int32)
        self.has_equals = bool((self._sorted[1:] == self._sorted[:-1]).any())

    def find(self, hashes: Hashes) -> Numbers:
        """Return an id for each hash; -1 where no piece has it."""
        spread = hashes * _SPREAD
        at = self._firsts[(spread >> np.uint64(64 - _BUCKET_BITS)).view(np.int64)]
        found = self._sorted[at]
        later = np.flatnonzero(found < spread)
        at[later] = np.minimum(np.searchsorted(self._sorted, spread[later]), len(self._sorted) - 1)
        found[later] = self._sorted[at[later]]
        return np.where(found == spread, self._ids[at], -1)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The pieces of a vocabulary, by id.

    Attributes:
        ranks: see `_ranks`.
        joins: whether a piece may be the result of a merge.
    """

    table: _Table
    hashes: Hashes
    lengths: Numbers
    ranks: Hashes
    joins: NDArray[np.bool_]

    def keys(self, whole: Numbers, left: Numbers, right: Numbers) -> Hashes:
        """Return numbers that order pairs as their merges are ordered; few pairs have equal ones."""
        lengths = (self.lengths[left] << 16) + self.lengths[right]
        keys: Hashes = self.ranks[whole] - lengths.astype(np.uint64)
        return keys

    def pair_keys(self, left: Numbers, right: Numbers, powers: Hashes) -> Hashes:
        """Return the keys of pairs that may not join; for those that do not, a number above all keys."""
        whole = self.table.find(self.hashes[left] + self.hashes[right] * powers[self.lengths[left]])
        keys = self.keys(whole, left, right)
        keys[(whole < 0) | ~self.joins[whole]] = _NO_KEY
        return keys


def _used(
    vocabulary: _Vocabulary, whole: Numbers, left: Numbers, right: Numbers, atoms: Sequence[int]
) -> NDArray[np.bool_]:
    """Return for each pair whether a text may need it. Pieces are judged by their length, as parts are shorter."""
    made = _Made(vocabulary, atoms)
    used = np.ones(len(whole), np.bool_)
    order = np.argsort(vocabulary.lengths[whole], kind="stable")
    ends = np.flatnonzero(np.diff(vocabulary.lengths[whole[order]], append=-1)) + 1
    for pairs in np.split(order, ends[:-1]):
        if made.rounds > _MOST_ROUNDS:
            break
        used[pairs] = made.judged(whole[pairs], left[pairs], right[pairs])
    return used


class _Made:
    """How pieces are made of others: by the only pair that is left of their cuts, in so far as that is known.

    A part of a pair was made after the other one if its last merge is worse than all that made the other: those would
    have come before it.

    Attributes:
        rounds: number of rounds in which pairs were judged.
    """

    def __init__(self, vocabulary: _Vocabulary, atoms: Sequence[int]) -> None:
        count = len(vocabulary.lengths)
        self.rounds = 0
        self._vocabulary = vocabulary
        self._left, self._right = (np.full(count, -1, np.int64) for _ in range(2))
        self._last, self._worst = (np.full(count, _NO_KEY, np.uint64) for _ in range(2))
        self._powers = _powers(_BASE, int(vocabulary.lengths.max(initial=0)) + 1)
        self._both = np.zeros(count, np.bool_)
        self._both[list(atoms)] = True
        # What no merge makes is older than all that is made.
        whole = ~vocabulary.joins | (vocabulary.lengths == 1)
        self._last[whole] = self._worst[whole] = 0

    def judged(self, whole: Numbers, left: Numbers, right: Numbers) -> NDArray[np.bool_]:
        """Return whether texts may need these pairs, all those of some pieces, by id, and note how these are made."""
        used = np.ones(len(whole), np.bool_)
        self.rounds += 1
        number = np.cumsum(np.diff(whole, prepend=whole[:1]) != 0)
        pairs = np.bincount(number)
        index = np.flatnonzero(pairs[number] > 1)
        first, second = left[index], right[index]
        while len(index):
            self.rounds += 1
            crossed, index, first, second = self._undone(index, first, second)
            used[crossed] = False
            pairs -= np.bincount(number[crossed], minlength=len(pairs))
            # The last pair of a piece is kept, whatever crosses it.
            several = pairs[number[index]] > 1
            index, first, second = index[several], first[several], second[several]
        place = np.flatnonzero(used & (pairs[number] == 1))
        place = place[~self._both[whole[place]]]
        piece = whole[place]
        self._left[piece], self._right[piece] = left[place], right[place]
        self._last[piece] = keys = self._vocabulary.keys(piece, left[place], right[place])
        self._worst[piece] = np.maximum(keys, np.maximum(self._worst[left[place]], self._worst[right[place]]))
        return used

    def _undone(self, index: Numbers, left: Numbers, right: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Undo the later of the merges that made each pair's parts, where it is known.

        Returns: which pairs a better one crossed before that merge, and the others, with their parts before it.
        """
        by_left = (self._left[left] >= 0) & (self._last[left] > self._worst[right])
        by_right = (self._left[right] >= 0) & (self._last[right] > self._worst[left])
        later = np.flatnonzero(by_left | by_right)
        index, left, right, by_left = index[later], left[later], right[later], by_left[later]
        limit = np.where(by_left, self._last[left], self._last[right])
        left, right = np.where(by_left, self._right[left], left), np.where(by_left, right, self._left[right])
        crossed = self._vocabulary.pair_keys(left, right, self._powers) < limit
        return index[crossed], index[~crossed], left[~crossed], right[~crossed]


@dataclass(frozen=True, slots=True)
class _Portion:
    """Consecutive pieces, and sums for the hashes of their parts.

    Attributes:
        first: id of the first piece.
        ends: where each piece ends in the text of all.
        sums: of the terms of all characters before each position.
        shifts: B⁻ⁿ for each position n.
    """

    first: int
    ends: Numbers
    sums: Hashes
    shifts: Hashes

    @property
    def starts(self) -> Numbers:
        """Where each piece begins in the text of all."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    def pieces(self) -> Hashes:
        """Return the hash of each piece."""
        return self._hashes(self.starts, self.ends)

    def cuts(self, table: _Table, joins: NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
        """Return the ids of the pieces that consist of two others, and the ids of these."""
        starts = self.starts
        piece = np.repeat(np.arange(len(self.ends)), self.ends - starts)
        cut = np.flatnonzero((np.arange(len(piece)) > starts[piece]) & joins[self.first + piece])
        piece = piece[cut]
        left = table.find(self._hashes(starts[piece], cut))
        cut, piece, left = (each[left >= 0] for each in (cut, piece, left))
        right = table.find(self._hashes(cut, self.ends[piece]))
        whole, left, right = (each[right >= 0] for each in (self.first + piece, left, right))
        return whole, left, right

    def _hashes(self, begins: Numbers, ends: Numbers) -> Hashes:
        return (self.sums[ends] - self.sums[begins]) * self.shifts[begins]


def _portions(tokens: Sequence[str], lengths: Numbers) -> Iterator[_Portion]:
    longest = int(np.argmax(lengths))
    if lengths[longest] > LONGEST_PIECE:
        raise ValueError(f"token {longest} has {lengths[longest]} characters; allowed: at most {LONGEST_PIECE}")
    size = _PORTION + LONGEST_PIECE
    powers, shifts = _powers(_BASE, size), _powers(pow(_BASE, -1, 2**64), size + 1)
    ends = np.cumsum(lengths)
    begins: list[int] = np.flatnonzero(np.diff(ends // _PORTION, prepend=-1)).tolist()
    for first, last in zip(begins, [*begins[1:], len(tokens)], strict=True):
        yield _portion(tokens[first:last], lengths[first:last], first, powers, shifts)


def _portion(tokens: Sequence[str], lengths: Numbers, first: int, powers: Hashes, shifts: Hashes) -> _Portion:
    characters = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    sums = np.zeros(len(characters) + 1, np.uint64)
    np.cumsum(characters * powers[: len(characters)], out=sums[1:])
    return _Portion(first, np.cumsum(lengths), sums, shifts)


def _powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)
