"""The part of a sequence that has arrived: each token once and in order, checked against the server's checksums."""

from __future__ import annotations

from typing import NoReturn

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._streaming.delivered import Delivered
from headrace._values.convert import elements_of
from headrace._values.details import Details
from headrace._values.integrity import checksum as checksum_of
from headrace._values.integrity import columns_fit
from headrace.errors import InternalServerError


class Arrived:
    """Tokens that have arrived, those that were not taken yet, and the end.

    Args:
        position: position of the first token to read.
        request_id: id of the request, for errors.
        delivered: where to keep what another engine needs to continue the sequence; None: it is not handed over.

    Attributes:
        position: position of the next token to arrive.
        taken: position of the first token that was not taken.
        checksum: CRC-32 of all ids before `position`; None: not known yet.
        end: the end record; None while the sequence runs.
        tail: text at the end that was not taken.
        prefix: how much of the prompt was cached; None: not known.
    """

    def __init__(self, position: int, request_id: str, delivered: Delivered | None) -> None:
        self._request_id = request_id
        self._delivered = delivered
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._details: list[Details] = []
        self.position = self.taken = position
        # Only a reader that begins at 0 knows the checksum before its first token.
        self.checksum: int | None = 0 if position == 0 else None
        self.end: request_pb2.EndRecord | None = None
        self.tail = ""
        self.prefix: request_pb2.PrefixReuse | None = None

    def begin(self, position: int, checksum: int) -> None:
        """Check that a stream which resumes at `position` continues this sequence.

        Args:
            position: position of the stream's first token.
            checksum: CRC-32 of all ids before it.

        Raises:
            InternalServerError: other tokens have arrived.
        """
        if position != self.position or self.checksum not in (None, checksum):
            self._damaged(f"the stream resumed at token {position}, which does not follow the {self.position} read")
        self.checksum = checksum

    def append(
        self, position: int, ids: list[int], text: str, after: int, details: Details | None, before: int | None = None
    ) -> None:
        """Check and append tokens.

        Args:
            position: position of the first token.
            ids: token ids; empty for a message that carries only other information.
            text: text of the tokens.
            after: CRC-32 of all ids up to and including them.
            details: their logprobs and tensors; None: neither.
            before: CRC-32 of all ids before them; None: as known here.

        Raises:
            InternalServerError: they do not continue what has arrived.
        """
        self._check(position, ids, (self.checksum or 0) if before is None else before, after, details)
        self._ids += ids
        self._texts.append(text)
        if details is not None:
            self._details.append(details)
        self.position += len(ids)
        self.checksum = after
        if self._delivered is not None:
            self._delivered.add(ids)

    def finish(self, end: request_pb2.EndRecord) -> None:
        """Check and keep the end record. Raises as `append`."""
        self._check_end(end, self.position, self.checksum)
        self.end, self.tail = end, end.text

    def cut(self, reason: request_pb2.FinishReason) -> None:
        """End the sequence here, with an error."""
        status = request_pb2.GENERATE_STATUS_INTERNAL_ERROR
        self.end = request_pb2.EndRecord(status=status, finish_reason=reason, position=self.position)
        self.tail = ""

    def reopen(self) -> None:
        """Forget the end."""
        self.end, self.tail = None, ""

    @property
    def complete(self) -> bool:
        """True if all of the sequence has arrived."""
        return self.end is not None and self.position == self.end.position

    @property
    def unread(self) -> bool:
        """True if the sequence has ended and has untaken tokens or text, whether they have arrived or not."""
        return self.end is not None and (self.taken < self.end.position or bool(self.tail))

    def _take(self) -> types.GeneratedElements | None:
        """Return all that was not taken, with the text at the end once complete; None if there is nothing."""
        if self.tail and self.complete:
            self._texts.append(self.tail)
            self.tail = ""
        elif not self._ids:
            return None
        ids, texts, details, position = self._ids, self._texts, self._details, self.taken
        # The lists are the caller's from here on.
        self._ids, self._texts, self.taken = [], [], self.position
        if details:
            self._details = []
        # Almost every read of a stream finds one text.
        return elements_of(ids, texts[0] if len(texts) == 1 else "".join(texts), position, details, self.prefix)

    def _check(self, position: int, ids: list[int], before: int, after: int, details: Details | None) -> None:
        if position != self.position:
            self._damaged(f"expected token {self.position}, received token {position}")
        if after != checksum_of(ids, before) or self.checksum not in (None, before):
            self._damaged(f"the checksum of tokens {position} to {position + len(ids) - 1} does not match")
        if details is not None and not columns_fit(details, len(ids)):
            self._damaged(f"per-token lists do not have one entry for each of {len(ids)} ids")
        if self.end is not None:
            self._check_end(self.end, position + len(ids), after)

    def _check_end(self, end: request_pb2.EndRecord, arrived: int, known: int | None) -> None:
        if arrived > end.position:
            self._damaged(f"the sequence ends at {end.position}, but token {arrived - 1} arrived")
        if arrived == end.position and known not in (None, end.checksum):
            self._damaged(f"the checksum of all {end.position} tokens does not match")

    def _damaged(self, what: str) -> NoReturn:
        raise InternalServerError(f"the results are damaged: {what}", request_id=self._request_id)
