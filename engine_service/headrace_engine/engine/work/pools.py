"""The thread pools of one engine, one for each kind of work, so that no kind delays another."""

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
"""Characters, ids or bytes up to which work is done inline: it takes about a millisecond."""

LONG_SIZE = 100_000
"""Characters, ids or bytes beyond which work has a pool of its own, with one thread for each owner."""

_DAY = 86_400.0


class WorkPools:
    """The pools for blocking work. They belong to the engine; models share them.

    Args:
        file_seconds: seconds that reading a model's files may take before the file system counts as stuck.

    Attributes:
        files: reading a model's files, except its weights, which the core loads.
        downloads: the same for models on a hub, whose client has timeouts of its own.
        texts: tokenizing, stop words, spellings, and converting large messages.
        long_texts: the same for texts of more than LONG_SIZE.
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
        """Return the result of work on a model's files. The parent folders of models are served in turn."""
        pool = self.downloads if is_name(path) else self.files
        return await pool.run(os.path.dirname(path), work, *arguments)

    async def on_text(
        self, owner: str, size: int, work: Callable[..., _Result], *arguments: Any, inline: int = INLINE_SIZE
    ) -> _Result:
        """Return the result of work on a text: done inline if it is small, else in a thread."""
        if size <= inline:
            return work(*arguments)
        return await self._texts(size).run(owner, work, *arguments, size=size)

    async def on_pieces(self, owner: str, size: int, largest: int, pieces: Generator[None, None, _Result]) -> _Result:
        """Return the result of work on many texts in pieces, between which other owners have turns.

        Args:
            largest: size of the largest piece.
        """
        return await self._texts(largest).run_pieces(owner, pieces, size)

    def _texts(self, size: int) -> WorkPool:
        return self.texts if size <= LONG_SIZE else self.long_texts


def _stuck_files(text: str) -> BadModel:
    return BadModel(
        f"reading the model: {text}. Check that its file system responds on the engine's host, then try again"
    )


def _slow_text(text: str) -> InvalidArgument:
    return InvalidArgument(f"preparing the text: {text}. Send less text at once")


def _slow_format(text: str) -> InvalidArgument:
    why = f"cannot be compiled: {text}. Send a simpler one"
    return InvalidArgument.field("config.response_format", why, reason="BAD_RESPONSE_FORMAT")
