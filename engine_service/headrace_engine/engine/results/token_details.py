"""Details of each token beside its id and text, for the requests that ask for them."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Self

from headrace_engine.result_types import TokenDetails, TokenTensors, TopLogprobs

TOKEN_BYTES = 9
"""Bytes of a token in a message beside its text, at most: its id, and its log-probability. Each of its most likely ids
takes as many."""

FLOAT_BYTES = 4

_HEADER_BYTES = 80
"""Bytes of names and shapes of a row's vectors in a message; a row may be a token."""

Top = tuple[list[int], list[float]]
"""The most likely ids of a token, and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class DetailOptions:
    """The details of each token that a request asks for.

    Attributes:
        top_count: most likely ids.
        hidden_size: entries of each of its two vectors; 0: they are not asked for.
    """

    logprobs: bool = False
    top_count: int = 0
    hidden_size: int = 0

    def __bool__(self) -> bool:
        return self.logprobs or self.top_count > 0 or self.hidden_size > 0

    @property
    def vector_bytes(self) -> int:
        """Bytes of both vectors."""
        return 2 * FLOAT_BYTES * self.hidden_size

    @property
    def top_bytes(self) -> int:
        """Bytes that a log keeps of a token's most likely ids: an id takes 4, a number 4."""
        return 8 * self.top_count

    @property
    def kept_bytes(self) -> int:
        """Bytes that a log keeps of a token, beside those of every token."""
        return self.top_bytes + self.vector_bytes

    @property
    def message_bytes(self) -> int:
        """Bytes of a token in a message, beside its text, at most."""
        vectors = self.vector_bytes and self.vector_bytes + _HEADER_BYTES
        return TOKEN_BYTES * (1 + self.top_count) + vectors


NOTHING = DetailOptions()


class DetailLog:
    """Details of a sequence's tokens, from the first on."""

    def __init__(self, options: DetailOptions) -> None:
        self.options = options
        self._logprobs = array("f")
        self._top_ids = array("I")
        self._top_logprobs = array("f")
        self._vectors: list[bytes] = []

    def add(self, logprob: float | None, top: Top | None, vectors: bytes) -> None:
        """Those of the next token, as far as they are asked for."""
        if self.options.logprobs:
            self._logprobs.append(math.nan if logprob is None else logprob)
        if self.options.top_count and top is not None:
            self._top_ids.extend(top[0])
            self._top_logprobs.extend(top[1])
        if self.options.hidden_size:
            self._vectors.append(vectors)

    def skip(self) -> None:
        """The next token is known elsewhere; nobody reads its details here."""
        count = self.options.top_count
        self.add(0.0, ([0] * count, [0.0] * count), b"")

    def without_logprobs(self) -> Self | None:
        """Return the details without log-probabilities, which the engine alone asked for. None: nothing is left."""
        options = DetailOptions(hidden_size=self.options.hidden_size)
        if not options:
            return None
        rest = type(self)(options)
        rest._vectors = self._vectors
        return rest

    def cut(self, start: int, stop: int) -> TokenDetails:
        """Return the details of tokens start to stop."""
        options, count = self.options, self.options.top_count
        span = slice(start * count, stop * count)
        return TokenDetails(
            token_logprobs=self._logprobs[start:stop].tolist() if options.logprobs else None,
            top_logprobs=_tops(count, self._top_ids[span], self._top_logprobs[span]) if count else None,
            tensors=_tensors(options, self._vectors[start:stop]) if options.hidden_size else None,
        )


def _tops(count: int, ids: array[int], logprobs: array[float]) -> TopLogprobs:
    return TopLogprobs(count, ids.tolist(), logprobs.tolist())


def _tensors(options: DetailOptions, vectors: list[bytes]) -> TokenTensors:
    half = options.vector_bytes // 2
    embeddings = b"".join([both[:half] for both in vectors])
    return TokenTensors(options.hidden_size, embeddings, b"".join([both[half:] for both in vectors]))
