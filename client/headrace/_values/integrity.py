"""Checking that tokens arrived unchanged."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from headrace._values.details import Details


def checksum(ids: Sequence[int], before: int = 0) -> int:
    """Return the CRC-32 of ids, each as 4 bytes little-endian, continued from the checksum of those before."""
    # Almost every step delivers one id.
    data = ids[0].to_bytes(4, "little") if len(ids) == 1 else struct.pack(f"<{len(ids)}I", *ids)
    return zlib.crc32(data, before)


def columns_fit(details: Details, count: int) -> bool:
    """Return whether per-token lists and tensors have an entry for each of `count` tokens."""
    logprobs = details.logprobs
    entries = len(logprobs.token_logprobs) * logprobs.top_count
    return (
        (not details.HasField("logprobs") or len(logprobs.token_logprobs) == count)
        and len(logprobs.top_ids) == len(logprobs.top_logprobs) == entries
        and all(list(named.tensor.shape[:1]) == [count] for named in details.tensors)
    )
