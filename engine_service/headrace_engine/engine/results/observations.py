"""Times and lengths of a model's requests and steps, counted in buckets for the engine's metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_proto.pure.histograms import REQUEST_SECONDS, Histogram

from headrace_engine.result_types import FinishReason

if TYPE_CHECKING:
    from headrace_engine.engine.results.statistics import SequenceTimes

_TOKEN_MILLISECONDS = (1, 2, 3, 5, 7.5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000)

TOKEN_SECONDS = tuple(milliseconds / 1000 for milliseconds in _TOKEN_MILLISECONDS)
"""Upper bounds of the buckets of times of steps, and between tokens."""

TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
"""Upper bounds of the buckets of lengths."""

BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds of the buckets of batch sizes."""

MOST_OWNERS = 1000
"""Owners that are counted by name."""

OTHER_OWNERS = "(others)"
"""Name under which all further owners are counted. No owner is called so."""


@dataclass(slots=True)
class OwnerUse:
    """Use of a model by one owner.

    Attributes:
        sequences: that have ended.
        prompt_tokens: of their requests, each counted once, by the engine that it began at.
        generated_tokens: of all of them.
    """

    sequences: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


def _seconds() -> Histogram:
    return Histogram(REQUEST_SECONDS)


def _token_seconds() -> Histogram:
    return Histogram(TOKEN_SECONDS)


def _tokens() -> Histogram:
    return Histogram(TOKENS)


@dataclass(slots=True)
class Observations:
    """Counts of one model since the engine's start, over all of its cores. Nothing is counted for each token.

    Attributes:
        queue_seconds: from a sequence's arrival to its first step.
        first_token_seconds: from its arrival to its first token; not after a hand-over, whose reader had one before.
        inter_token_seconds: between two tokens of a sequence; counted when it ends.
        request_seconds: from a sequence's arrival to its end.
        step_seconds: of each step.
        batch_size: sequences in each step.
        prompt_tokens: lengths of prompts, once for each request, when its first sequence ends where it began.
        generated_tokens: tokens that sequences generated here, when they end.
        finished: sequences that ended, by reason.
        preemptions: of sequences.
        handovers: requests that other engines had begun.
        owners: use by owner; "" has what no owner was named for.
    """

    queue_seconds: Histogram = field(default_factory=_seconds)
    first_token_seconds: Histogram = field(default_factory=_seconds)
    inter_token_seconds: Histogram = field(default_factory=_token_seconds)
    request_seconds: Histogram = field(default_factory=_seconds)
    step_seconds: Histogram = field(default_factory=_token_seconds)
    batch_size: Histogram = field(default_factory=lambda: Histogram(BATCH))
    prompt_tokens: Histogram = field(default_factory=_tokens)
    generated_tokens: Histogram = field(default_factory=_tokens)
    finished: Counter[FinishReason] = field(default_factory=Counter)
    preemptions: int = 0
    handovers: int = 0
    owners: dict[str, OwnerUse] = field(default_factory=dict)

    def note_first_token(self, times: SequenceTimes, now: float) -> None:
        """Count a sequence's first token, unless another engine had one."""
        if times.kept.first_token_time is None:
            self.first_token_seconds.note(max(0.0, now - times.arrival))

    def note_end(self, reason: FinishReason, times: SequenceTimes, generated: int, *, first: bool) -> None:
        """Count a sequence that has ended.

        Args:
            generated: number of tokens that it generated here.
            first: it is its request's first sequence.
        """
        self.finished[reason] += 1
        self.inter_token_seconds.note_all(times.gaps)
        if times.finished is not None:
            self.request_seconds.note(max(0.0, times.finished - times.arrival))
        self.generated_tokens.note(generated)
        use = self._use_of(times.owner)
        use.sequences += 1
        use.generated_tokens += generated
        if first and not times.handovers:
            self.prompt_tokens.note(times.prompt_length)
            use.prompt_tokens += times.prompt_length

    def _use_of(self, owner: str) -> OwnerUse:
        """Return what is counted of an owner, under its name or, beyond MOST_OWNERS, with all others."""
        use = self.owners.get(owner)
        if use is None:
            name = owner if len(self.owners) < MOST_OWNERS else OTHER_OWNERS
            use = self.owners.setdefault(name, OwnerUse())
        return use
