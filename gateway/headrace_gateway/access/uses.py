"""What owners use of the engines: as last reported, plus the requests placed since."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace_proto.v1.session_pb2 import OwnerUsage

REPORT_SECONDS = 0.25
"""Seconds after which a placed request is in the engine's reports: engines look every 100 ms and report changes."""

_TRAVEL_SECONDS = 0.02
"""Assumed age of a report when it arrives: it does not count requests placed since then."""


@dataclass(frozen=True, slots=True)
class Use:
    """What an owner uses of several engines.

    Attributes:
        requests: requests that have not ended.
        waiting: of these, those that wait.
        bytes: bytes reserved for its requests.
    """

    requests: int = 0
    waiting: int = 0
    bytes: int = 0


class _OfEngine:
    """What owners use of one engine, while the gateway's session with it stands."""

    def __init__(self) -> None:
        self.reported: dict[str, OwnerUsage] = {}
        self.starting: Counter[str] = Counter()
        self.started: dict[str, deque[float]] = {}

    def placed(self, owner: str, before: float) -> int:
        """Return the requests being started, and those started that no report counts yet; forget older ones."""
        started = self.started.get(owner)
        if started is None:
            return self.starting[owner]
        while started and started[0] <= before:
            started.popleft()
        if not started:
            del self.started[owner]
        return self.starting[owner] + len(started)


class OwnerUses:
    """What each owner uses of each engine.

    Args:
        charge: called with an owner and the tokens that it has used since the last report.
        now: monotonic clock, in seconds.

    Attributes:
        prompt_tokens: tokens of prompts by owner, since the gateway was started.
        sampled_tokens: tokens sampled, likewise.
    """

    def __init__(self, charge: Callable[[str, int], None], now: Callable[[], float] = time.monotonic) -> None:
        self._charge, self._now = charge, now
        self._engines: dict[str, _OfEngine] = {}
        self.prompt_tokens: Counter[str] = Counter()
        self.sampled_tokens: Counter[str] = Counter()

    def begin(self, engine: str) -> None:
        """Forget what an engine reported: its next session tells all anew, with tokens from 0 on."""
        self._of(engine).reported.clear()

    def leave(self, engine: str) -> None:
        """Forget an engine."""
        self._engines.pop(engine, None)

    def update(self, engine: str, reports: Iterable[OwnerUsage]) -> None:
        """Apply the reports of an engine, and charge the tokens."""
        known, now = self._of(engine), self._now()
        for report in reports:
            last = known.reported.get(report.owner)
            prompt = report.prompt_tokens - (0 if last is None else last.prompt_tokens)
            sampled = report.sampled_tokens - (0 if last is None else last.sampled_tokens)
            known.reported[report.owner] = report
            known.placed(report.owner, now - _TRAVEL_SECONDS)
            if prompt or sampled:
                self.prompt_tokens[report.owner] += prompt
                self.sampled_tokens[report.owner] += sampled
                self._charge(report.owner, prompt + sampled)

    @contextmanager
    def placing(self, engine: str, owner: str) -> Iterator[None]:
        """Count a request while it is being started, and after that until the engine's reports include it."""
        known = self._of(engine)
        known.starting[owner] += 1
        try:
            yield
            known.started.setdefault(owner, deque()).append(self._now())
        finally:
            known.starting[owner] -= 1
            if not known.starting[owner]:
                del known.starting[owner]

    def total(self, owner: str, *, without: str = "") -> Use:
        """Return what an owner uses of all engines, or of all but one."""
        before = self._now() - REPORT_SECONDS
        requests = waiting = kept = 0
        for name, known in self._engines.items():
            if name == without:
                continue
            report = known.reported.get(owner)
            requests += known.placed(owner, before)
            if report is not None:
                requests, waiting, kept = requests + report.requests, waiting + report.waiting, kept + report.bytes
        return Use(requests, waiting, kept)

    def _of(self, engine: str) -> _OfEngine:
        return self._engines.setdefault(engine, _OfEngine())
