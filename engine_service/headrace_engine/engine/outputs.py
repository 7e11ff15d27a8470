"""From the steps of a core to the logs of its sequences, and back: ends that the front half decides."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from itertools import count

from headrace_engine.engine.requests import Sequence
from headrace_engine.engine.statistics import Clock, StepHistory
from headrace_engine.errors import Internal
from headrace_engine.messages import AddSequence, Ended, Scheduled, StepBegun, StepOutput
from headrace_engine.result_types import FinishReason, PrefixReuse


class Outputs:
    """The sequences of one model that have not ended, by key. Output for a key that is not here is dropped.

    Args:
        history: is told of every step.

    Attributes:
        mean_duration: seconds from arrival to end, mean of the newest requests.
    """

    def __init__(self, clock: Clock, history: StepHistory) -> None:
        self._clock = clock
        self._live: dict[int, Sequence] = {}
        self._keys = count(1)
        self._commands: dict[Sequence, AddSequence] = {}
        self._waiting: set[int] = set()
        self._in_step: list[int] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.history = history
        self.mean_duration = 1.0

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """Sequences that were in no step yet."""
        return len(self._waiting)

    @property
    def tokens_to_prefill(self) -> int:
        """Prompt tokens of sequences without a token, less those that the cache gave."""
        times = (sequence.times for sequence in self._live.values())
        return sum(each.prompt_length - (each.cached_length or 0) for each in times if each.first_token is None)

    def new_key(self) -> int:
        """A key for a sequence, never used before for this model."""
        return next(self._keys)

    def all(self) -> list[Sequence]:
        """The sequences, in order of arrival."""
        return list(self._live.values())

    def in_step(self) -> list[Sequence]:
        """Those in the step that the core began last."""
        return [self._live[key] for key in self._in_step if key in self._live]

    def command(self, sequence: Sequence) -> AddSequence:
        """What made the first core compute a sequence that has not ended."""
        return self._commands[sequence]

    def add(self, sequence: Sequence, command: AddSequence) -> None:
        """Expect output for a sequence that a core is told to compute."""
        self._live[sequence.key] = sequence
        self._commands[sequence] = command
        self._waiting.add(sequence.key)
        self._idle.clear()

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """These wait again, under new keys: output for the old ones is dropped, and computed anew."""
        for sequence in sequences:
            self._waiting.discard(sequence.key)
            sequence.key = self.new_key()
            self._waiting.add(sequence.key)
        self._live = {sequence.key: sequence for sequence in self._live.values()}

    def begin_step(self, step: StepBegun) -> None:
        """The core computes for these sequences from now on."""
        self._in_step = step.keys

    def process(self, output: StepOutput) -> None:
        """Bring what a step produced into the logs, and wake their readers once."""
        now = self._clock()
        self.history.add(output)
        for scheduled in output.scheduled:
            self._scheduled(scheduled, now - output.step_time)
        for key in output.preempted:
            if key in self._live:
                self._live[key].times.preemptions += 1
        touched = self._append(output, now)
        for ended in output.ended:
            self._ended(ended)
        for sequence in touched:
            sequence.log.wake()

    def finish(self, sequence: Sequence, reason: FinishReason, error: str = "") -> bool:
        """End a sequence for a reason of our own. False: it had ended before."""
        if self._live.pop(sequence.key, None) is None:
            return False
        del self._commands[sequence]
        self._waiting.discard(sequence.key)
        sequence.finish(reason, self._clock(), Internal(error) if reason is FinishReason.ERROR else None)
        duration = self._clock() - sequence.times.arrival
        self.mean_duration += (duration - self.mean_duration) / 8
        if not self._live:
            self._idle.set()
        return True

    def finish_all(self, reason: FinishReason, error: str = "") -> list[int]:
        """End every sequence that is left; returns their keys."""
        keys = list(self._live)
        for sequence in self.all():
            self.finish(sequence, reason, error)
        return keys

    async def wait_idle(self) -> None:
        """Wait until every sequence has ended."""
        await self._idle.wait()

    def _scheduled(self, scheduled: Scheduled, began: float) -> None:
        self._waiting.discard(scheduled.key)
        sequence = self._live.get(scheduled.key)
        if sequence is None or sequence.times.scheduled is not None:  # A core before this one had begun it.
            return
        sequence.times.scheduled = max(sequence.times.arrival, began)
        sequence.times.cached_length = scheduled.cached_tokens
        sequence.log.prefix = PrefixReuse(prefix_len_gpu=scheduled.cached_tokens)
        sequence.log.wake()

    def _append(self, output: StepOutput, now: float) -> list[Sequence]:
        touched = []
        logprobs = output.logprobs or [math.nan] * len(output.keys)
        for key, token_id, logprob in zip(output.keys, output.token_ids, logprobs, strict=True):
            sequence = self._live.get(key)
            if sequence is None:
                continue
            sequence.log.append(token_id, sequence.decoder.push(token_id), logprob)
            sequence.times.token(now)
            touched.append(sequence)
        return touched

    def _ended(self, ended: Ended) -> None:
        sequence = self._live.get(ended.key)
        if sequence is not None:
            self.finish(sequence, ended.reason, ended.error)
