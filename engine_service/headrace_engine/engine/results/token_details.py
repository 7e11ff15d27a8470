"""Details of each token in addition to its id and text, for requests that ask for them."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Self

from headrace_engine.token_types import TokenDetails, TokenTensors, TopLogprobs

TOKEN_BYTES = 9
"""Maximum bytes of a token in a message without its text: its id and logprob. Each of its top ids takes as many."""

FLOAT_BYTES = 4

_HEADER_BYTES = 80
"""Maximum bytes of the names and shapes of a token's vectors in a message."""

Top = tuple[list[int], list[float]]
"""The top ids of a token, and their logprobs."""


@dataclass(frozen=True, slots=True)
class DetailOptions:
    """The details of each token that a request asks for.

    Attributes:
        top_count: number of top ids.
        hidden_size: entries of each of its two vectors; 0: not requested.
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
        """Bytes of a token's top ids in a log: 4 per id, 4 per number."""
        return 8 * self.top_count

    @property
    def kept_bytes(self) -> int:
        """Bytes of a token's details in a log."""
        return self.top_bytes + self.vector_bytes

    @property
    def message_bytes(self) -> int:
        """Maximum bytes of a token in a message, without its text."""
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
        """Append the requested details of the next token."""
        if self.options.logprobs:
            self._logprobs.append(math.nan if logprob is None else logprob)
        if self.options.top_count and top is not None:
            self._top_ids.extend(top[0])
            self._top_logprobs.extend(top[1])
        if self.options.hidden_size:
            self._vectors.append(vectors)

    def without_logprobs(self) -> Self | None:
        """Return the details without the logprobs, which were only kept for ranking. None: nothing is left."""
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
