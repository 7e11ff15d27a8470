"""Distributes the results of a core's steps to the logs of its sequences, and ends sequences."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, count, repeat

from headrace_engine.engine.cores.cached_blocks import CachedBlocks
from headrace_engine.engine.cores.recent import RecentRequests
from headrace_engine.engine.cores.waiting_queue import Waiting, WaitingQueue
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.spans import record_spans
from headrace_engine.engine.results.statistics import Clock, StepHistory
from headrace_engine.engine.results.token_details import Top
from headrace_engine.errors import Internal
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.messages import StepBegun
from headrace_engine.ipc.step_output import Ended, PooledPiece, PromptPiece, Scheduled, StepOutput
from headrace_engine.result_types import FinishReason, GenerateStatus, PrefixReuse


class Outputs:
    """The live sequences of one model, by key. Output for unknown keys is dropped.

    It is the only writer of their logs; readers of requests and sessions only read them.

    Args:
        history: records every step.

    Attributes:
        queue: sequences that have not been in a step yet.
        cached: the blocks in the prefix cache.
        recent: what the newest requests took.
    """

    def __init__(self, clock: Clock, history: StepHistory) -> None:
        self._clock = clock
        self._live: dict[int, Sequence] = {}
        self._keys = count(1)
        self._commands: dict[Sequence, AddSequence] = {}
        self.queue = self._waiting = WaitingQueue()
        self._weights: dict[Sequence, int] = {}  # What they count for beyond one, where they do.
        self._in_step: list[int] = []
        self.cached = CachedBlocks()
        self._idle = asyncio.Event()
        self._idle.set()
        self.history = history
        self._observed = history.observed
        self.recent = RecentRequests()

    @property
    def live(self) -> int:
        """Number of sequences that have not ended; in a beam search, its beams."""
        return len(self._live) + sum(self._weights.values())

    @property
    def waiting(self) -> int:
        """Number of sequences that have not been in a step yet."""
        return len(self._waiting)

    @property
    def tokens_to_prefill(self) -> int:
        """Number of prompt tokens still to compute, without those from the prefix cache or shared in a request."""
        live = ((each.times, self._commands[each].is_first) for each in self._live.values())
        found = (times for times, first in live if times.first_token is None and (first or times.scheduled is not None))
        return sum(times.prompt_length - (times.cached_length or 0) for times in found)

    def ahead_of(self, priority: int) -> int:
        """Return the number of waiting sequences that are served before a new one of this priority."""
        return self._waiting.ahead_of(priority)

    def commands_waiting(self) -> Iterator[AddSequence]:
        """Return the command of each sequence that has not been in a step yet."""
        return (self._commands[self._live[key]] for key in self._waiting)

    def new_key(self) -> int:
        """Return a new key for a sequence, unique for this model."""
        return next(self._keys)

    def all(self) -> list[Sequence]:
        """Return all live sequences, in order of arrival."""
        return list(self._live.values())

    def in_step(self) -> list[Sequence]:
        """Return the live sequences of the latest step."""
        return [self._live[key] for key in self._in_step if key in self._live]

    def using(self, adapters: Collection[int]) -> list[Sequence]:
        """Return the live sequences with one of these adapters."""
        return [each for each in self._live.values() if self._commands[each].adapter in adapters]

    def command(self, sequence: Sequence) -> AddSequence:
        """Return the command that started a live sequence."""
        return self._commands[sequence]

    def find_command(self, sequence: Sequence) -> AddSequence | None:
        """Return the command that started a sequence; None if it has ended."""
        return self._commands.get(sequence)

    def add(self, sequence: Sequence, command: AddSequence) -> None:
        """Register a sequence before its command is sent to the core."""
        self._live[sequence.key] = sequence
        self._commands[sequence] = command
        self._waiting.add(sequence.key, _waiting(command))
        if sequence.times.handovers and command.is_first:
            self._observed.handovers += 1
            sequence.times.happens("hand-over", sequence.times.arrival)
        if command.weight != 1:
            self._weights[sequence] = command.weight - 1
        self._idle.clear()

    def requeue(self, sequences: Iterable[Sequence]) -> None:
        """Let sequences wait again, under new keys: output for the old keys is dropped, and computed again."""
        for sequence in sequences:
            self._waiting.discard(sequence.key)
            sequence.times.happens("recovery", self._clock())
            sequence.key = self.new_key()
            self._waiting.add(sequence.key, _waiting(self._commands[sequence]))
        self._live = {sequence.key: sequence for sequence in self._live.values()}

    def begin_step(self, step: StepBegun) -> None:
        """Record the sequences of the step that the core began."""
        self._in_step = step.keys

    def process(self, output: StepOutput) -> list[int]:
        """Append the results of a step to the logs, and wake each log's readers once.

        Returns:
            Keys of sequences that a stop ended here and that the core may still compute.
        """
        now = self._clock()
        for scheduled in output.scheduled:
            self._scheduled(scheduled, now - output.step_time)
        self._observed.preemptions += len(output.preempted)
        for key in output.preempted:
            if key in self._live:
                self._live[key].times.preemptions += 1
                self._live[key].times.happens("preemption", now)
        for key, length in output.searched.items():
            if key in self._live:
                self._live[key].log.note_searched(length)
        for drafts in output.drafts:
            if drafts.key in self._live:
                self._live[drafts.key].times.drafted += drafts.drafted
                self._live[drafts.key].times.accepted += drafts.accepted
        if output.prompts:
            self._add_prompt_logprobs(output.prompts)
        if output.pooled:
            self._add_states(output.pooled)
        touched = self._append(output, now)
        self.history.add(output, len(output.keys) - len(touched))
        self.cached.apply(output.cache)
        stopped = [sequence.key for sequence in touched if sequence.log.end is not None]
        for ended in output.ended:
            self._ended(ended)
        for sequence in touched:
            sequence.log.wake()
        return stopped

    def finish(self, sequence: Sequence, reason: FinishReason, error: str = "") -> bool:
        """End a sequence for a reason of the front half. False: it had ended before."""
        if self._live.pop(sequence.key, None) is None:
            return False
        command = self._commands.pop(sequence)
        self._weights.pop(sequence, None)
        self._waiting.discard(sequence.key)
        failed = reason.status is GenerateStatus.INTERNAL_ERROR
        sequence.finish(reason, self._clock(), Internal(error) if failed else None)
        self.recent.note_end(sequence.times, self._clock())
        generated = len(sequence.log) - sequence.log.first_position
        self._observed.note_end(reason, sequence.times, generated, first=command.is_first)
        record_spans(sequence.times, reason, sequence.index, generated)
        if not self._live:
            self._idle.set()
        return True

    def finish_all(self, reason: FinishReason, error: str = "") -> list[int]:
        """End all live sequences and return their keys."""
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
        if sequence is None or sequence.times.scheduled is not None:  # A previous core had begun it.
            return
        sequence.times.scheduled = max(sequence.times.arrival, began)
        sequence.times.cached_length = scheduled.cached_tokens
        self._observed.queue_seconds.note(sequence.times.scheduled - sequence.times.arrival)
        self.recent.note_start(sequence.times)
        from_pool = scheduled.cached_tokens - scheduled.host_tokens
        sequence.log.contents.prefix = PrefixReuse(from_pool, scheduled.host_tokens)
        sequence.log.wake()

    def _add_prompt_logprobs(self, pieces: Iterable[PromptPiece]) -> None:
        for piece in pieces:
            sequence = self._live.get(piece.key)
            if sequence is not None and sequence.prompt is not None:
                sequence.prompt.add(piece)

    def _add_states(self, pieces: Iterable[PooledPiece]) -> None:
        for piece in pieces:
            sequence = self._live.get(piece.key)
            if sequence is not None and sequence.states is not None:
                sequence.states.add(piece)

    def _append(self, output: StepOutput, now: float) -> list[Sequence]:
        touched = []
        logprobs = output.logprobs or [math.nan] * len(output.keys)
        tensors = output.tensors or [b""] * len(output.keys)
        rows = zip(output.keys, output.token_ids, logprobs, _tops(output), tensors, strict=True)
        for key, token_id, logprob, top, vectors in rows:
            sequence = self._live.get(key)
            if sequence is None:
                continue
            decoder, times = sequence.decoder, sequence.times
            sequence.log.contents.append(token_id, decoder.push(token_id), logprob, top, vectors)
            if times.first_token is None:
                self._observed.note_first_token(times, now)
            times.token(now)
            touched.append(sequence)
            if decoder.stop is not None:  # Tokens beyond the stop are dropped: the key is gone.
                self.finish(sequence, FinishReason.STOP_WORD)
        return touched

    def _ended(self, ended: Ended) -> None:
        sequence = self._live.get(ended.key)
        if sequence is not None:
            self.finish(sequence, ended.reason, ended.error)


def _waiting(command: AddSequence) -> Waiting:
    return Waiting(command.priority, command.owner, command.group or command.key, command.weight)


def _tops(output: StepOutput) -> Iterable[Top | None]:
    """Return the top ids and logprobs of each row; None where none were requested."""
    if not output.top_counts:
        return repeat(None, len(output.keys))
    ends = accumulate(output.top_counts)
    spans = (slice(end - count, end) for count, end in zip(output.top_counts, ends, strict=True))
    return [(output.top_ids[span], output.top_logprobs[span]) for span in spans]
