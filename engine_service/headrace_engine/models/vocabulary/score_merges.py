"""The merges of a SentencePiece vocabulary, which has only a score for each piece.

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

_BASE = 0x9E37_79B9_7F4A_7C15
_SPREAD = np.uint64(0xD6E8_FEB8_6659_FD93)
_BUCKET_BITS = 20

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def merges_from_scores(
    tokens: Sequence[str], scores: NDArray[np.float64], joins: NDArray[np.bool_]
) -> list[tuple[str, str]]:
    """Return every pair of pieces that joins to a third, best score of that first.

    Among equal scores, the longer left part comes first, then the longer right part.

    Args:
        tokens: the pieces, by id.
        scores: of each piece.
        joins: whether a piece may be the result of a merge.

    Raises:
        ValueError: a piece has more than LONGEST_PIECE characters.
    """
    table = _Table(np.concatenate([portion.pieces() for portion in _portions(tokens)]))
    found = [portion.cuts(table, joins) for portion in _portions(tokens)]
    whole, left, right = (np.concatenate(part) for part in zip(*found, strict=True))
    lengths = np.fromiter(map(len, tokens), np.uint64, len(tokens))
    order = np.argsort(_ranks(scores)[whole] - (lengths[left] << np.uint64(16)) - lengths[right], kind="stable")
    texts = np.array(tokens, object)
    return list(zip(texts[left[order]].tolist(), texts[right[order]].tolist(), strict=True))


def _ranks(scores: NDArray[np.float64]) -> Hashes:
    """Return numbers that order scores from the best on, and leave their lower 33 bits to lengths."""
    _, places = np.unique(-scores, return_inverse=True)
    return (places.astype(np.uint64) + np.uint64(1)) << np.uint64(33)


class _Table:
    """Finds ids by the hashes of their pieces.

    Args:
        hashes: of each piece.
    """

    def __init__(self, hashes: Hashes) -> None:
        spread = hashes * _SPREAD
        self._ids = np.argsort(spread)
        self._sorted = spread[self._ids]
        buckets = np.arange(2**_BUCKET_BITS, dtype=np.uint64) << np.uint64(64 - _BUCKET_BITS)
        # The first entry of a bucket is nearly always the only one; a search past it is rare.
        self._firsts = np.minimum(np.searchsorted(self._sorted, buckets), len(hashes) - 1).astype(np.int32)

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


def _portions(tokens: Sequence[str]) -> Iterator[_Portion]:
    size = _PORTION + LONGEST_PIECE
    powers, shifts = _powers(_BASE, size), _powers(pow(_BASE, -1, 2**64), size + 1)
    first, length = 0, 0
    for index, token in enumerate(tokens):
        if len(token) > LONGEST_PIECE:
            raise ValueError(f"token {index} has {len(token)} characters; allowed: at most {LONGEST_PIECE}")
        length += len(token)
        if length >= _PORTION or index == len(tokens) - 1:
            yield _portion(tokens[first : index + 1], first, powers, shifts)
            first, length = index + 1, 0


def _portion(tokens: Sequence[str], first: int, powers: Hashes, shifts: Hashes) -> _Portion:
    characters = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    sums = np.zeros(len(characters) + 1, np.uint64)
    np.cumsum(characters * powers[: len(characters)], out=sums[1:])
    return _Portion(first, np.cumsum([len(token) for token in tokens]), sums, shifts)


def _powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)
