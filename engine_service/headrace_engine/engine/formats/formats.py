"""Check the response formats of a model's requests before they are accepted, outside the event loop."""

from __future__ import annotations

import re
from collections import OrderedDict
from threading import Lock

from headrace_engine.engine.formats.checker import FormatChecker
from headrace_engine.engine.formats.frames import Verdict, Words
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_parts import ResponseFormat
from headrace_engine.request_types import ConfigWarning

MAX_REMEMBERED = 4 << 20
"""Maximum size of the cache of formats and their verdicts, in bytes."""

_FIELD = "config.response_format"
_SHORT = 8192
_LARGE_NUMBER = re.compile("[0-9]{3}")

_ENTRY = 512
"""Bytes of a cache entry without its texts."""


class ResponseFormats:
    """Checks response formats in threads of its own, so that large formats delay only each other.

    The result only decides whether a request is accepted: the core compiles the format again.

    Args:
        bundle: the model's tokenizer.
        vocab_size: number of ids that the model has logits for.
        pools: thread pools to check in; None: pools of its own.
    """

    def __init__(self, bundle: TokenizerBundle, vocab_size: int, pools: WorkPools | None = None) -> None:
        self._checker = FormatChecker(Words(bundle.pieces, bundle.special_ids, vocab_size))
        self._remembered = _Remembered(MAX_REMEMBERED)
        self._pools = pools or WorkPools()

    async def check(self, wanted: ResponseFormat | None, owner: str = "") -> tuple[Verdict, tuple[ConfigWarning, ...]]:
        """Return the grammar of a format with its cost, and warnings; an empty verdict without a format.

        Args:
            owner: owner of the request: owners take turns when many formats are checked.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT.
            ResourceExhausted: QUEUE_FULL, too many formats wait.
        """
        if wanted is None:
            return Verdict(), ()
        found = self._remembered.find(wanted)
        if found is None:
            # Quick formats have a turn of their own, apart from their owner's slow ones.
            turn = f"{owner}\0quick" if _is_quick(wanted) else owner
            found = await self._pools.formats.run(turn, self.look, wanted)
        if isinstance(found, InvalidArgument):
            raise found
        return found, tuple(ConfigWarning(_FIELD, text) for text in found.warnings)

    def look(self, wanted: ResponseFormat) -> Verdict | InvalidArgument:
        """Return the verdict on a format. Blocks; safe from any thread."""
        found = self._remembered.find(wanted)
        if found is None:
            try:
                found = self._checker.check(wanted)
            except InvalidArgument as error:
                found = error.with_traceback(None)
            self._remembered.add(wanted, found)
        return found

    def close(self) -> None:
        """End the checking process."""
        self._checker.close()


def _is_quick(wanted: ResponseFormat) -> bool:
    """True for formats that are surely cheap: choices, and short texts without a repetition of 100 or more."""
    text = wanted.text
    return not text or (len(text) <= _SHORT and _LARGE_NUMBER.search(text) is None)


class _Remembered:
    """Thread-safe LRU cache of verdicts on formats."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[ResponseFormat, Verdict | InvalidArgument] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def find(self, wanted: ResponseFormat) -> Verdict | InvalidArgument | None:
        with self._lock:
            if wanted in self._entries:
                self._entries.move_to_end(wanted)
            return self._entries.get(wanted)

    def add(self, wanted: ResponseFormat, found: Verdict | InvalidArgument) -> None:
        with self._lock:
            if wanted not in self._entries:
                self._entries[wanted] = found
                self.size += _bytes(wanted, found)
            while self.size > self._max_bytes:
                self.size -= _bytes(*self._entries.popitem(last=False))


def _bytes(wanted: ResponseFormat, found: Verdict | InvalidArgument) -> int:
    """Return the bytes of an entry: at most four per character, and an overhead per string."""
    texts = [wanted.text, *wanted.choices]
    texts += [found.message] if isinstance(found, InvalidArgument) else [found.grammar, *found.warnings]
    return _ENTRY + sum(64 + len(text) * (1 if text.isascii() else 4) for text in texts)
