"""The pools of one engine, by the kind of work: what one kind waits for costs no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from headrace_engine.engine.config.options import FILE_LIMIT
from headrace_engine.engine.work.pool import PoolLimits, WorkPool
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.loaders.hub import is_name

_Result = TypeVar("_Result")

INLINE_SIZE = 2_000
"""Characters, ids or bytes up to which work is done at once: it takes about a millisecond."""

LONG_SIZE = 100_000
"""Larger works have threads of their own, one for each owner."""

_DAY = 86_400.0


class WorkPools:
    """What blocks is done here, each kind in threads of its own.

    Args:
        file_seconds: that reading the files of a model may take before its file system counts as stuck.

    Attributes:
        files: looking at models and reading what they need before a core loads their weights.
        downloads: the same where a hub is asked first, whose client bounds its own waits.
        texts: tokenising, stop words, spellings, and turning large messages.
        long_texts: those of more than LONG_SIZE.
        formats: checking response formats.
    """

    def __init__(self, file_seconds: float = FILE_LIMIT) -> None:
        self.files = WorkPool("reading models", PoolLimits(4, 4096, 600.0, file_seconds, _stuck_files))
        self.downloads = WorkPool("fetching models", PoolLimits(3, 256, _DAY, _DAY, _stuck_files))
        threads = min(8, max(3, len(os.sched_getaffinity(0))))
        self.texts = WorkPool("preparing texts", PoolLimits(threads, 512, 30.0, 60.0, _slow_text, 32 << 20))
        self.long_texts = WorkPool("preparing long texts", PoolLimits(2, 256, 60.0, 300.0, _slow_text, 128 << 20))
        self.formats = WorkPool("checking response formats", PoolLimits(2, 256, 30.0, 150.0, _slow_format))

    async def on_files(self, path: str, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """The result of work on the files of a model. Models of one folder have turns with those of others."""
        pool = self.downloads if is_name(path) else self.files
        return await pool.run(os.path.dirname(path), work, *arguments)

    async def on_text(
        self, owner: str, size: int, work: Callable[..., _Result], *arguments: Any, inline: int = INLINE_SIZE
    ) -> _Result:
        """The result of work on a text: at once where it is small, else in a thread."""
        if size <= inline:
            return work(*arguments)
        return await self._texts(size).run(owner, work, *arguments, size=size)

    async def on_pieces(self, owner: str, size: int, largest: int, pieces: Generator[None, None, _Result]) -> _Result:
        """The result of work on many texts in pieces, between which others have turns.

        Args:
            largest: the size of the largest piece.
        """
        return await self._texts(largest).run_pieces(owner, pieces, size)

    def _texts(self, size: int) -> WorkPool:
        return self.texts if size <= LONG_SIZE else self.long_texts


def _stuck_files(text: str) -> BadModel:
    return BadModel(
        f"reading the model: {text}. Look on the engine's host whether its file system answers, then try again"
    )


def _slow_text(text: str) -> InvalidArgument:
    return InvalidArgument(f"preparing the text: {text}. Send less text at once")


def _slow_format(text: str) -> InvalidArgument:
    why = f"cannot be compiled: {text}. Send a simpler one"
    return InvalidArgument.field("config.response_format", why, reason="BAD_RESPONSE_FORMAT")
