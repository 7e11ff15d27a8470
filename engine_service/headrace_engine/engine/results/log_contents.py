"""The contents of a sequence's log: ids, text and details by position, and the end record."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from zlib import crc32

from headrace_engine.engine.results.token_details import DetailLog, DetailOptions, Top
from headrace_engine.result_types import Elements, EndRecord, PrefixReuse
from headrace_engine.token_types import TokenDetails


class LogContents:
    """The tokens of a sequence by position, followed by its end record.

    Text belongs to the token that completed it, so what a reader receives depends only on its position.

    Args:
        options: the details to keep of each token.

    Attributes:
        end: the end record, once there is one.
        prefix: cache use of the prompt, once known.
    """

    def __init__(self, options: DetailOptions) -> None:
        self._ids = array("I")
        self._checksums = array("I")
        self._texts: list[str] = []
        self._text_ends = array("Q")  # bytes of all text up to a token, itself included
        self._details = DetailLog(options) if options else None
        self.end: EndRecord | None = None
        self.prefix: PrefixReuse | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, start: int) -> array[int]:
        """Return the ids from a position on; not to be modified."""
        return self._ids[start:] if start else self._ids

    def append(self, token_id: int, text: str, logprob: float | None, top: Top | None, vectors: bytes) -> None:
        """Append a token, the text that it completed, and the requested details."""
        checksums, ends = self._checksums, self._text_ends
        checksums.append(crc32(token_id.to_bytes(4, "little"), checksums[-1] if checksums else 0))
        ends.append((ends[-1] if ends else 0) + (len(text) if text.isascii() else len(text.encode())))
        self._ids.append(token_id)
        self._texts.append(text)
        if self._details is not None:
            self._details.add(logprob, top, vectors)

    def append_delivered(self, token_id: int) -> None:
        """Append an id that another engine delivered; its text and details are not readable here."""
        count = 0 if self._details is None else self._details.options.top_count
        self.append(token_id, "", 0.0, ([0] * count, [0.0] * count), b"")

    def drop_logprobs(self) -> None:
        """Drop the logprobs, which were only kept for ranking."""
        if self._details is not None:
            self._details = self._details.without_logprobs()

    def checksum_before(self, position: int) -> int:
        """Return the CRC-32 over all ids before a position."""
        return self._checksums[position - 1] if position else 0

    def elements(self, start: int, stop: int) -> Elements:
        """Return tokens start to stop as one element."""
        return Elements(
            position=start,
            token_ids=self._ids[start:stop].tolist(),
            text="".join(self._texts[start:stop]),
            checksum_before=self.checksum_before(start),
            checksum_after=self.checksum_before(stop),
            details=self.details(start, stop),
            prefix=self.prefix,
        )

    def columns(self, start: int, stop: int) -> tuple[array[int], str, int, TokenDetails | None]:
        """Return ids, text, the checksum after the last, and the details (None: none are kept) of start to stop."""
        text = self._texts[start] if stop - start == 1 else "".join(self._texts[start:stop])
        details = None if self._details is None else self._details.cut(start, stop)
        return self._ids[start:stop], text, self._checksums[stop - 1], details

    def details(self, start: int, stop: int) -> TokenDetails | None:
        """Return the details of tokens start to stop; None if none are kept."""
        return None if self._details is None else self._details.cut(start, stop)

    def fitting(self, start: int, stop: int, limit: int, token_bytes: int) -> tuple[int, int]:
        """Return the end, at most stop, of the longest piece from start within `limit` bytes; and the piece's bytes.

        Args:
            stop: greater than start.
            token_bytes: bytes of a token without its text.
        """
        ends = self._text_ends
        before = self._text_before(start)
        size = ends[stop - 1] - before + (stop - start) * token_bytes
        if size > limit:
            tokens = range(1, stop - start + 1)
            fit = bisect_right(tokens, limit, key=lambda n: ends[start + n - 1] - before + n * token_bytes)
            return start + fit, ends[start + fit - 1] - before + fit * token_bytes if fit else 0
        return stop, size

    def stop_of_text(self, start: int, limit: int) -> int:
        """Return the end of the longest piece from start whose text has at most `limit` bytes."""
        return bisect_right(self._text_ends, self._text_before(start) + limit)

    def _text_before(self, position: int) -> int:
        return self._text_ends[position - 1] if position else 0
