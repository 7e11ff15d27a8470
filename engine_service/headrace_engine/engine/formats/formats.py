"""The response formats of one model's requests: checked before a request is accepted, and off the loop."""

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
"""Bytes of formats and what became of them that are remembered for the next request with the same."""

_FIELD = "config.response_format"
_SHORT = 8192
_LARGE_NUMBER = re.compile("[0-9]{3}")

_ENTRY = 512
"""Bytes of an entry beside its texts."""


class Guiding:
    """Checks what requests bring, in threads of its own: many large formats hold up each other and nothing else.

    Only to find out whether that can be done: the core compiles again.

    Args:
        bundle: the model's tokenizer.
        vocab_size: ids that the model has logits for.
        pools: where formats are checked; None: pools of its own.
    """

    def __init__(self, bundle: TokenizerBundle, vocab_size: int, pools: WorkPools | None = None) -> None:
        self._checker = FormatChecker(Words(bundle.pieces, bundle.special_ids, vocab_size))
        self._remembered = _Remembered(MAX_REMEMBERED)
        self._pools = pools or WorkPools()

    async def check(self, wanted: ResponseFormat | None, owner: str = "") -> tuple[Verdict, tuple[ConfigWarning, ...]]:
        """The grammar of a format, with what it takes, and what is suspicious about it; an empty one without a format.

        Args:
            owner: for whom: owners have turns where many formats are checked.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT.
            ResourceExhausted: QUEUE_FULL, too many formats wait.
        """
        if wanted is None:
            return Verdict(), ()
        found = self._remembered.find(wanted)
        if found is None:
            # Those that are quick have turns of their own beside their owner's slow ones.
            turn = f"{owner}\0quick" if _is_quick(wanted) else owner
            found = await self._pools.formats.run(turn, self.look, wanted)
        if isinstance(found, InvalidArgument):
            raise found
        return found, tuple(ConfigWarning(_FIELD, text) for text in found.warnings)

    def look(self, wanted: ResponseFormat) -> Verdict | InvalidArgument:
        """What becomes of a format. Blocking; from any thread."""
        found = self._remembered.find(wanted)
        if found is None:
            try:
                found = self._checker.check(wanted)
            except InvalidArgument as error:
                found = error.with_traceback(None)
            self._remembered.add(wanted, found)
        return found

    def close(self) -> None:
        """End the process that checks."""
        self._checker.close()


def _is_quick(wanted: ResponseFormat) -> bool:
    """Whether a format surely takes little: a choice does, and what is short and repeats nothing a hundred times."""
    text = wanted.text
    return not text or (len(text) <= _SHORT and _LARGE_NUMBER.search(text) is None)


class _Remembered:
    """What became of formats, the latest used of them. Safe to use from several threads."""

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
    """Bytes of an entry: a character takes at most four, and a string of a choice some more."""
    texts = [wanted.text, *wanted.choices]
    texts += [found.message] if isinstance(found, InvalidArgument) else [found.grammar, *found.warnings]
    return _ENTRY + sum(64 + len(text) * (1 if text.isascii() else 4) for text in texts)
