"""Follows a text through its grammar."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from copy import copy
from itertools import islice, takewhile

from headrace_engine.guided.compiled import Compiled
from headrace_engine.guided.library import LibraryFailed, call_library
from headrace_engine.guided.time_limit import TimeLimit

_BITS = 32

_CHUNK = 64
"""Number of ids consumed between two computations of the allowed ids: each of those refills the parser's fuel."""

_DEAD_END = "NoExtension"
"""The library's name for a position where no id is allowed."""

_AMBIGUOUS = ("Too many items", "Current row has")
"""The library's names for limits that depend on the text alone, so that fresh automata would not help."""

_TOO_LONG = "it takes too long to match"

_QUICK = 0.05
"""Processor seconds: a grammar that takes longer to compile is not recompiled in the middle of a text."""

_DRAFT_SECONDS = 0.002
"""Processor seconds for each drafted id: following it may not take much longer than computing it."""

_DRAFT_AHEAD = 0.02
"""Processor seconds that drafts may take in excess, saved up from quick ones."""


class GuideFailed(Exception):
    """The text exceeded the parser's limits, or the time that a text may take."""


class Guide:
    """Follows one sequence, and knows which ids may come next.

    If another sequence drives the shared automata beyond their limits, it continues with automata of its own.

    Args:
        size: number of ids that the model has logits for.
        end: the id that the parser allows where the text may end; not one of the model's ids.
        eos_ids: the model's ids that end the text.

    Attributes:
        allowed: bit mask of the ids that may come next, lowest id first; always the same array.
        drafts: following drafted ids has been quick so far.

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
        self._draft_time = TimeLimit(per_id=_DRAFT_SECONDS, ahead=_DRAFT_AHEAD)
        self._forced: deque[int] = deque()
        self.drafts = True
        self.allowed = array("I", bytes(4 * (end // _BITS + 1)))
        try:
            self._matcher = compiled.begin()
            self._update_allowed()
        except LibraryFailed as error:
            self._use_own_automata(error)

    def take(self, token_ids: Sequence[int]) -> None:
        """Advance by these ids. An id that is not allowed, such as the one that ends the text, is the last one.

        Raises:
            GuideFailed: a limit was reached.
        """
        if self._over or not token_ids:
            return
        self._taken.extend(token_ids)
        self._skip_forced(token_ids)
        self._compiled.count(len(token_ids))
        self._time.begin(len(token_ids))
        try:
            self._follow(token_ids)
        except LibraryFailed as error:
            self._use_own_automata(error)
        self._time.end()

    def allows(self, token_id: int) -> bool:
        """Return True if this id may come next."""
        return token_id < self._end and bool(self.allowed[token_id // _BITS] >> token_id % _BITS & 1)

    def forced(self, most: int) -> list[int]:
        """Return the ids that come next, at most `most`, if their text can only be this, and is tokenized as usual."""
        if not self._forced and not self._over and self.drafts:
            self._draft_time.begin(1)
            try:
                ids = call_library(call_library(self._matcher.deep_copy).compute_ff_tokens)
                self._forced.extend(takewhile(lambda token_id: token_id < self._end, ids))
            except LibraryFailed:
                self.drafts = False
            self.drafts &= not self._draft_time.is_over
            self._draft_time.end()
        return list(islice(self._forced, most))

    def fork(self) -> Guide:
        """Return a guide of the same text, to be taken over drafted ids; this one stays where it is.

        Raises:
            LibraryFailed: the library failed.
        """
        other = self.branch()
        other._taken = array("I")
        other._shares = False  # It fails rather than compile automata of its own.
        other._time = other._draft_time = self._draft_time
        return other

    def branch(self) -> Guide:
        """Return a guide of the same text, to follow another one that begins with it.

        Raises:
            LibraryFailed: the library failed.
        """
        other = copy(self)
        other._matcher = call_library(self._matcher.deep_copy)
        other._taken, other._forced, other.allowed = array("I", self._taken), deque(), array("I", self.allowed)
        other._time, other._draft_time = copy(self._time), copy(self._draft_time)
        return other

    def _skip_forced(self, token_ids: Sequence[int]) -> None:
        """Drop the forced ids that were taken, or all of them where the text differs."""
        for token_id in token_ids:
            if not self._forced or self._forced.popleft() != token_id:
                self._forced.clear()
                return

    @property
    def can_continue(self) -> bool:
        """True if the text can be continued or ended."""
        return not self._over

    def _follow(self, token_ids: Sequence[int]) -> None:
        for begin in range(0, len(token_ids), _CHUNK):
            piece = list(token_ids[begin : begin + _CHUNK])
            self._over = call_library(self._matcher.try_consume_tokens, piece) < len(piece)
            self._check_limits()
            self._update_allowed()
            if self._over:
                return
            if self._time.is_over:
                raise GuideFailed(_TOO_LONG)

    def _use_own_automata(self, error: LibraryFailed) -> None:
        if any(words in str(error) for words in _AMBIGUOUS):
            raise GuideFailed(str(error)) from None
        self._compiled.sound = False
        if not self._shares or self._compiled.seconds > _QUICK:
            raise GuideFailed(str(error)) from None
        self._shares = False
        try:
            self._matcher = self._compiled.compile_own()
            self._update_allowed()
            self._follow(self._taken)
        except LibraryFailed as again:
            raise GuideFailed(str(again)) from None

    def _update_allowed(self) -> None:
        bits = self.allowed
        address, size = bits.buffer_info()
        if not self._over:
            call_library(self._matcher.unsafe_compute_mask_ptr, address, bits.itemsize * size)
        if self._over or self._is_stuck():
            bits[:] = array("I", bytes(bits.itemsize * size))
            return
        self._check_limits()
        if self._take_bit(self._end):
            for token_id in self._eos_ids:
                bits[token_id // _BITS] |= 1 << token_id % _BITS

    def _is_stuck(self) -> bool:
        """Return True if no id is allowed: the text is over then, which is not a failure of the parser."""
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
