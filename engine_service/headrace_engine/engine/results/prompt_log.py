"""Prompt logprobs of a request, shared by all of its sequences."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from headrace_engine.engine.results.budget import Reservation
from headrace_engine.engine.results.token_details import TOKEN_BYTES
from headrace_engine.errors import InvalidArgument, OutOfRange
from headrace_engine.ipc.step_output import PromptPiece
from headrace_engine.token_types import PromptLogprobs, TopLogprobs

MAX_READ_BYTES = 960 * 1024
"""Maximum bytes of one read, except for a single token."""

_FIRST = 1
"""Index of the first token with a logprob: token 0 has no predecessor."""


class PromptLog:
    """Logprobs of the tokens of a prompt, from token 1 on, for any number of readers.

    Args:
        ids: the prompt.
        top_count: number of top ids per token.
        reservation: its reserved bytes, owned until `release`; None: not counted.

    Attributes:
        top_count: the same.
    """

    def __init__(self, ids: Sequence[int], top_count: int, reservation: Reservation | None = None) -> None:
        self._ids = array("I", ids)
        self.top_count = top_count
        self._logprobs = array("f")
        self._top_ids = array("I")
        self._top_logprobs = array("f")
        self._reservation = reservation

    @property
    def position(self) -> int:
        """Index in the prompt of the next token to append."""
        return _FIRST + len(self._logprobs)

    def add(self, piece: PromptPiece) -> None:
        """Append the new part of a piece: another sequence of the request may have sent its beginning."""
        known = self.position - piece.position
        if known < 0:
            raise ValueError(f"the prompt is known up to token {self.position}, and {piece.position} came")
        self._logprobs.extend(piece.logprobs[known:])
        self._top_ids.extend(piece.top_ids[known * self.top_count :])
        self._top_logprobs.extend(piece.top_logprobs[known * self.top_count :])

    def check_position(self, position: int) -> None:
        """Refuse a position that the prompt does not have.

        Raises:
            OutOfRange: with the numbers.
        """
        length = len(self._ids)
        if not 0 <= position <= length:
            text = f"prompt_logprobs_from = {position} is outside the prompt of {length} tokens; allowed: 0 to {length}"
            raise OutOfRange(text, metadata={"prompt_length": str(length)})

    def read(self, position: int, limit: int = MAX_READ_BYTES) -> PromptLogprobs | None:
        """Return the available logprobs from a position on, up to the limit of one read. None: none yet, or no more.

        Args:
            limit: maximum bytes; at least one token is returned.
        """
        start = max(_FIRST, position)
        fitting = limit // (TOKEN_BYTES * (1 + self.top_count))
        stop = min(self.position, start + max(1, fitting))
        if stop <= start:
            return None
        count = self.top_count
        span = slice((start - _FIRST) * count, (stop - _FIRST) * count)
        ids, logprobs = self._top_ids[span].tolist(), self._top_logprobs[span].tolist()
        return PromptLogprobs(
            position=start,
            token_ids=self._ids[start:stop].tolist(),
            token_logprobs=self._logprobs[start - _FIRST : stop - _FIRST].tolist(),
            top_logprobs=TopLogprobs(count, ids, logprobs) if count else None,
        )

    def pieces(self, position: int = _FIRST) -> Iterator[PromptLogprobs]:
        """Return an iterator over the available logprobs from a position on, one read at a time."""
        piece = self.read(position)
        while piece is not None:
            yield piece
            piece = self.read(piece.position + len(piece.token_ids))

    def release(self) -> None:
        """Give back the reservation: there are no more readers."""
        if self._reservation is not None:
            self._reservation.give_back()


def prompt_log_bytes(length: int, top_count: int) -> int:
    """Return the maximum bytes of the prompt logprobs: 4 per id, 4 per number."""
    return length * 8 * (1 + top_count)


def require_prompt_log(log: PromptLog | None) -> PromptLog:
    """Return the log if the request has one.

    Raises:
        InvalidArgument: the request did not ask for prompt logprobs.
    """
    if log is None:
        text = "is for requests with prompt_logprobs in their config; this one has none"
        raise InvalidArgument.field("prompt_logprobs_from", text)
    return log
