"""Use of an engine by owner: requests in progress, bytes, tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace_proto.pure.quiet_names import QuietNames

from headrace_engine.engine.results.result_log import ResultLog

_REMEMBERED = 100_000
"""Owners without requests or reserved bytes that are remembered; one that was forgotten is counted anew."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Use by one owner, at one time.

    Attributes:
        requests: requests that have not ended.
        waiting: of these, those of which a sequence has not been in a step yet.
        bytes: bytes reserved for its requests to all models.
        prompt_tokens: tokens of the prompts of its requests so far.
        sampled_tokens: tokens of their sequences so far, computed by this engine.
        count: number of the count that the tokens belong to: an owner that was forgotten is counted anew.
    """

    owner: str
    requests: int = 0
    waiting: int = 0
    bytes: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    count: int = 0


class OwnerCounts:
    """The counts of one owner. Tokens of a running sequence are those in its log, so that a step counts nothing.

    Args:
        owner: the owner.
        count: number of this count.

    Attributes:
        owner: the owner.
        requests: requests that have not ended.
        bytes: bytes reserved for its requests.
        prompt_tokens: tokens of prompts so far.
        version: number of its last change, among those of all owners.
    """

    def __init__(self, owner: str, count: int = 0) -> None:
        self.owner, self._count = owner, count
        self.requests = self.bytes = self.prompt_tokens = self.version = 0
        self._ended_tokens = 0
        self._logs: set[ResultLog] = set()

    def begin(self, log: ResultLog) -> None:
        """Count the tokens of a sequence from here on."""
        self._logs.add(log)

    def end(self, log: ResultLog) -> None:
        """Keep the count of a sequence that has ended."""
        if log in self._logs:
            self._logs.remove(log)
            self._ended_tokens += _computed(log)

    def now(self, waiting: int) -> Usage:
        """Return what is used now."""
        sampled = self._ended_tokens + sum(map(_computed, self._logs))
        return Usage(self.owner, self.requests, waiting, self.bytes, self.prompt_tokens, sampled, self._count)


class UsageCounts:
    """The counts of all owners, in the order of their last change."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, OwnerCounts] = OrderedDict()
        self._busy: dict[str, OwnerCounts] = {}
        self._quiet: QuietNames[str] = QuietNames(_REMEMBERED)
        self._version = 0

    @contextmanager
    def changing(self, owner: str) -> Iterator[OwnerCounts]:
        """Give the counts of an owner, to be changed."""
        self._version += 1
        counted = self._counts.get(owner)
        if counted is None:
            counted = self._counts[owner] = OwnerCounts(owner, self._version)
        self._counts.move_to_end(owner)
        counted.version = self._version
        yield counted
        if counted.requests or counted.bytes:
            self._quiet.used(owner)
        elif (forgotten := self._quiet.unused(owner)) is not None:
            del self._counts[forgotten]

    def add_request(self, owner: str, change: int) -> None:
        """Count a request that begins (1), or has ended (-1)."""
        with self.changing(owner) as counted:
            counted.requests += change
        if counted.requests:
            self._busy[owner] = counted
        else:
            self._busy.pop(owner, None)

    def find(self, owner: str) -> OwnerCounts:
        """Return the counts of an owner, to be read."""
        return self._counts.get(owner) or OwnerCounts(owner)

    def changed(self, since: int) -> tuple[list[OwnerCounts], int]:
        """Return the counts that have changed, or may have: those with requests; and the number of the last change."""
        found = dict(self._busy)
        for counted in self._newest():
            if counted.version <= since:
                break
            found[counted.owner] = counted
        return list(found.values()), self._version

    def _newest(self) -> Iterator[OwnerCounts]:
        return reversed(self._counts.values())


def _computed(log: ResultLog) -> int:
    return len(log) - log.first_position
