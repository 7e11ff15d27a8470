"""Reports the texts of beam searches that have ended, a bounded number of tokens with each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from headrace_engine.core.runner import Sampled
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.ipc.commands import WantedText
from headrace_engine.ipc.step_output import Ended
from headrace_engine.result_types import FinishReason

_AT_ONCE = 1024
"""Tokens of one step's report."""


class FoundTexts:
    """Texts whose tokens are still to be reported, in order."""

    def __init__(self) -> None:
        self._left: deque[tuple[Ended, Iterator[Sampled]]] = deque()

    def __bool__(self) -> bool:
        """Return True if anything is left to report."""
        return bool(self._left)

    def add(self, search: BeamSearch) -> None:
        """Report the texts that a search was started for."""
        for wanted in search.plan.wanted:
            if wanted.key in search.keys:
                self._left.append(_found(search, wanted))

    def drop(self, key: int) -> None:
        """Report no more of a text."""
        self._left = deque(each for each in self._left if each[0].key != key)

    def take(self) -> tuple[list[tuple[int, Sampled]], list[Ended]]:
        """Return the next tokens, each with the key of its sequence, and the sequences that end with them."""
        tokens: list[tuple[int, Sampled]] = []
        ended: list[Ended] = []
        while self._left and len(tokens) < _AT_ONCE:
            end, left = self._left[0]
            tokens += ((end.key, token) for token in islice(left, _AT_ONCE - len(tokens)))
            if len(tokens) < _AT_ONCE:
                ended.append(end)
                self._left.popleft()
        return tokens, ended


def _found(search: BeamSearch, wanted: WantedText) -> tuple[Ended, Iterator[Sampled]]:
    tokens, reason = search.result(wanted.index)
    count = len(wanted.delivered)
    if [token.token_id for token in tokens[:count]] != list(wanted.delivered):
        text = f"the text does not begin with the {count} tokens that were delivered of it earlier"
        return Ended(wanted.key, FinishReason.ERROR, text), iter(())
    return Ended(wanted.key, reason), islice(tokens, count, None)
