"""Use of the engines by owner: as last reported, plus the requests placed since."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace_proto.pure.quiet_names import QuietNames
from headrace_proto.v1.session_pb2 import OwnerUsage

REPORT_SECONDS = 0.25
"""Seconds after which a placed request is in the engine's reports: engines look every 100 ms and report changes."""

_REMEMBERED = 200_000
"""Owners remembered that use nothing: twice as many as engines remember, so that no token is charged twice."""

_TRAVEL_SECONDS = 0.02
"""Assumed age of a report when it arrives: it does not count requests placed since then."""


@dataclass(frozen=True, slots=True)
class Use:
    """Use of several engines by one owner.

    Attributes:
        requests: requests that have not ended.
        waiting: of these, those that wait.
        bytes: bytes reserved for its requests.
    """

    requests: int = 0
    waiting: int = 0
    bytes: int = 0


class _OfEngine:
    """Use of one engine by owner, while the gateway's session with it stands."""

    def __init__(self) -> None:
        self._reported: dict[str, OwnerUsage] = {}
        self._quiet: QuietNames[str] = QuietNames(_REMEMBERED)
        self.starting: Counter[str] = Counter()
        self.started: dict[str, deque[float]] = {}

    def begin(self) -> None:
        """Forget what was reported."""
        self._reported.clear()
        self._quiet.clear()

    def last(self, owner: str) -> OwnerUsage | None:
        """Return the last report on an owner."""
        return self._reported.get(owner)

    def take(self, report: OwnerUsage) -> tuple[int, int]:
        """Keep a report. Return the tokens of prompts, and the sampled ones, since the last one."""
        last = self._reported.get(report.owner)
        self._reported[report.owner] = report
        if report.requests or report.bytes:
            self._quiet.used(report.owner)
        elif (forgotten := self._quiet.unused(report.owner)) is not None:
            del self._reported[forgotten]
        if last is None or last.count != report.count:
            return report.prompt_tokens, report.sampled_tokens
        return report.prompt_tokens - last.prompt_tokens, report.sampled_tokens - last.sampled_tokens

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
    """Use of each engine by owner.

    Args:
        charge: called with an owner and the tokens that it has used since the last report.
        now: monotonic clock, in seconds.

    Attributes:
        expected: requests by owner that will be started next, as parts of calls that start several.
        prompt_tokens: tokens of prompts by owner, since the gateway was started or has last forgotten the owner.
        sampled_tokens: tokens sampled, likewise.
    """

    def __init__(self, charge: Callable[[str, int], None], now: Callable[[], float] = time.monotonic) -> None:
        self._charge, self._now = charge, now
        self._engines: dict[str, _OfEngine] = {}
        self.expected: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.sampled_tokens: Counter[str] = Counter()
        self._counted: QuietNames[str] = QuietNames(_REMEMBERED)

    def begin(self, engine: str) -> None:
        """Forget what an engine reported: its next session reports everything anew, with tokens from 0 on."""
        self._of(engine).begin()

    def leave(self, engine: str) -> None:
        """Forget an engine."""
        self._engines.pop(engine, None)

    def update(self, engine: str, reports: Iterable[OwnerUsage]) -> None:
        """Apply the reports of an engine, and charge the tokens."""
        known, now = self._of(engine), self._now()
        for report in reports:
            prompt, sampled = known.take(report)
            known.placed(report.owner, now - _TRAVEL_SECONDS)
            if prompt or sampled:
                self._count(report.owner, prompt, sampled)
                self._charge(report.owner, prompt + sampled)

    @contextmanager
    def placing(self, engine: str, owner: str) -> Iterator[None]:
        """Count a request while it is being started, and after that until the engine's reports include it."""
        known = self._of(engine)
        known.starting[owner] += 1
        try:
            yield
            known.placed(owner, self._now() - REPORT_SECONDS)
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
            report = known.last(owner)
            requests += known.placed(owner, before)
            if report is not None:
                requests, waiting, kept = requests + report.requests, waiting + report.waiting, kept + report.bytes
        return Use(requests, waiting, kept)

    def _count(self, owner: str, prompt: int, sampled: int) -> None:
        self.prompt_tokens[owner] += prompt
        self.sampled_tokens[owner] += sampled
        if (forgotten := self._counted.unused(owner)) is not None:
            del self.prompt_tokens[forgotten], self.sampled_tokens[forgotten]

    def _of(self, engine: str) -> _OfEngine:
        return self._engines.setdefault(engine, _OfEngine())
