"""Where a text stands in its grammar."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace_engine.guided.library import LibraryFailed, ask
from headrace_engine.guided.time_limit import TimeLimit

if TYPE_CHECKING:
    from llguidance import LLMatcher

_BITS = 32

_AT_ONCE = 64
"""Ids that are taken without a look at what may follow: each look gives the parser new fuel."""

_DEAD_END = "NoExtension"
"""What the library calls a place where no id goes on."""

_AMBIGUOUS = ("Too many items", "Current row has")
"""What the library calls limits that a text reaches by itself, whatever automata it has."""

GROWTH = 2048
"""Bytes that a grammar is taken to grow by with each id of a text: its automata are built as they are met."""

MAX_GROWTH = 32 << 20
"""Bytes that it may grow by before it is compiled afresh for the next request."""

_TOO_LONG = "it takes too long to match"

_QUICK = 0.05
"""Processor seconds: what takes longer to compile is not compiled again in the middle of a text."""


class GuideFailed(Exception):
    """The text so far took the parser beyond its limits, or more time than texts have."""


class Compiled:
    """A compiled grammar. All guides of it build, and look things up in, the same automata.

    Args:
        compiles: makes another one, which shares nothing with this one.
        size: bytes that it takes, as far as that is known.
        seconds: processor time that it takes to compile.

    Attributes:
        sound: no guide of it took the automata beyond their limits, which is the end of all that share them.
    """

    def __init__(self, compiles: Callable[[], LLMatcher], size: int = 0, seconds: float = 0.0) -> None:
        self._compiles = compiles
        self._matcher = compiles()
        self._size = size
        self._taken = 0
        self.seconds = seconds
        self.sound = True

    @property
    def size(self) -> int:
        """Bytes that it takes by now, estimated from above for usual grammars."""
        return self._size + min(self._taken * GROWTH, MAX_GROWTH)

    @property
    def is_worn(self) -> bool:
        """Whether it has grown so far that a new one is better made."""
        return self._taken * GROWTH >= MAX_GROWTH

    def begin(self) -> LLMatcher:
        """Return a matcher at the beginning of a text."""
        return ask(self._matcher.deep_copy)

    def apart(self) -> LLMatcher:
        """Return a matcher at the beginning of a text that shares nothing with others. Compiles."""
        return self._compiles()

    def count(self, taken: int) -> None:
        """Note that a text has gone on by so many ids."""
        self._taken += taken


class Guide:
    """Follows one sequence, and knows which ids may come next.

    Where another sequence with the same grammar took the automata that they share beyond the limits, it goes on with
    some of its own.

    Args:
        size: ids that the model has logits for.
        end: the id that the parser allows where the text may end; not one of the model's.
        eos_ids: the ids that end it instead.

    Attributes:
        allowed: one bit an id, the lowest first, of the ids that may come next. It is this array always.

    Raises:
        GuideFailed: a limit was reached.
    """

    def __init__(self, compiled: Compiled, size: int, end: int, eos_ids: tuple[int, ...]) -> None:
        self._compiled = compiled
        self._end = end
        self._eos_ids = [token_id for token_id in eos_ids if token_id < size]
        self._over = False
        self._shares = True
        self._taken = array("I")
        self._time = TimeLimit()
        self.allowed = array("I", bytes(4 * (end // _BITS + 1)))
        try:
            self._matcher = compiled.begin()
            self._look()
        except LibraryFailed as error:
            self._go_on_apart(error)

    def take(self, token_ids: Sequence[int]) -> None:
        """The text goes on with these ids. One that was not allowed, such as the one that ends it, is its last.

        Raises:
            GuideFailed: a limit was reached.
        """
        if self._over or not token_ids:
            return
        self._taken.extend(token_ids)
        self._compiled.count(len(token_ids))
        self._time.begin(len(token_ids))
        try:
            self._follow(token_ids)
        except LibraryFailed as error:
            self._go_on_apart(error)
        self._time.end()

    @property
    def may_begin(self) -> bool:
        """Whether a text may have another id, or end."""
        return not self._over

    def _follow(self, token_ids: Sequence[int]) -> None:
        for begin in range(0, len(token_ids), _AT_ONCE):
            piece = list(token_ids[begin : begin + _AT_ONCE])
            self._over = ask(self._matcher.try_consume_tokens, piece) < len(piece)
            self._check_limits()
            self._look()
            if self._over:
                return
            if self._time.is_over:
                raise GuideFailed(_TOO_LONG)

    def _go_on_apart(self, error: LibraryFailed) -> None:
        if any(words in str(error) for words in _AMBIGUOUS):
            raise GuideFailed(str(error)) from None
        self._compiled.sound = False
        if not self._shares or self._compiled.seconds > _QUICK:
            raise GuideFailed(str(error)) from None
        self._shares = False
        try:
            self._matcher = self._compiled.apart()
            self._look()
            self._follow(self._taken)
        except LibraryFailed as again:
            raise GuideFailed(str(again)) from None

    def _look(self) -> None:
        bits = self.allowed
        place, size = bits.buffer_info()
        if not self._over:
            ask(self._matcher.unsafe_compute_mask_ptr, place, bits.itemsize * size)
        if self._over or self._is_stuck():
            bits[:] = array("I", bytes(bits.itemsize * size))
            return
        self._check_limits()
        if self._take_bit(self._end):
            for token_id in self._eos_ids:
                bits[token_id // _BITS] |= 1 << token_id % _BITS

    def _is_stuck(self) -> bool:
        """No id goes on, which is no fault of the parser. Nothing follows then, as after a text that is over."""
        if self._matcher.is_error() and _DEAD_END in self._matcher.get_error():
            self._over = True
        return self._over

    def _take_bit(self, token_id: int) -> int:
        word, bit = token_id // _BITS, 1 << token_id % _BITS
        found = self.allowed[word] & bit
        self.allowed[word] &= ~bit
        return found

    def _check_limits(self) -> None:
        if self._matcher.is_error():
            raise LibraryFailed(self._matcher.get_error())
