"""Samples rows with logits processors again from the processed logits, by a program of one op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.changed_row import Row, allowed_bits, changed_row
from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.backends.cpu.prompt_logprobs import rows_at_once, small_shape
from headrace_engine.backends.extra_outputs import forced_step
from headrace_engine.backends.processors import Process, is_cut, is_processed, run_processes
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.native import Cpu, Memory, Program, Rows, Shape, Value
from headrace_engine.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0)
_LEAST = np.finfo(np.float32).min


def unprocessed(steps: Sequence[SequenceStep]) -> list[SequenceStep]:
    """Return the same rows, with greedy sampling where they are sampled again, or candidates found."""
    return [_plain(step) if is_processed([step]) else step for step in steps]


def _plain(step: SequenceStep) -> SequenceStep:
    sampling = step.sampling if step.candidates else step.sampling and _GREEDY
    return replace(step, sampling=sampling, masked_ids=(), changes=None)


@dataclass(slots=True)
class _Resampled:
    """A row that is sampled again.

    Attributes:
        number: index among the rows of logits.
        row: the processed logits.
    """

    number: int
    step: SequenceStep
    row: Row
    answer: Sampled


class ProcessedRows:
    """Runs logits processors, and samples from the processed logits.

    Args:
        shape: shape of the step's program.
        processes: the processors by name.

    Attributes:
        program: the sampler.
    """

    def __init__(self, cpu: Cpu, shape: Shape, processes: Mapping[str, Process]) -> None:
        self._processes = processes
        self._at_once = rows_at_once(shape.vocab)
        self._logits = Value(0, shape.vocab, Rows.LOGITS)
        self.program = Program(cpu, small_shape(shape, self._at_once * shape.vocab, self._at_once))
        self.program.sample(self._logits)

    def bind(self, pool: Memory, num_blocks: int) -> None:
        """Allocate the workspace. A program needs a pool, but this one does not access it."""
        self.program.bind(pool, num_blocks)
        self._batch = CpuBatch(self.program.shape)

    def sample(
        self, steps: Sequence[SequenceStep], sampled: Iterable[Sampled], logits: NDArray[np.float32]
    ) -> list[Sampled]:
        """Return the results of all rows; processed rows are sampled again.

        Args:
            sampled: results of the steps with `sampling`, before processing.
            logits: the model's own, [steps with `sampling`, vocab].
        """
        answers = list(sampled)
        sampling_steps = [step for step in steps if step.sampling is not None]
        numbers = [n for n, step in enumerate(sampling_steps) if _is_resampled(step) and not answers[n].error]
        for first in range(0, len(numbers), self._at_once):
            part = [self._processed(n, sampling_steps[n], logits[n]) for n in numbers[first : first + self._at_once]]
            self._resample([item for item in part if not item.answer.error], logits)
            for item in part:
                answers[item.number] = item.answer
        return answers

    def _processed(self, number: int, step: SequenceStep, own: Row) -> _Resampled:
        row = changed_row(own, step)
        assert step.processing is not None, "only processed rows come here"
        return _Resampled(number, step, row, Sampled(None, error=run_processes(row, step.processing, self._processes)))

    def _resample(self, again: list[_Resampled], logits: NDArray[np.float32]) -> None:
        """Sample from the processed rows, then compute logprobs of the sampled ids from the model's own logits."""
        sampled = self._run([item.row for item in again], [_resampling_step(item) for item in again])
        for item, answer in zip(again, sampled, strict=True):
            item.answer = answer
        requesting = [item for item in again if _wants_logprobs(item)]
        reported = self._run([logits[item.number] for item in requesting], list(_forced_steps(requesting)))
        for item, answer in zip(requesting, reported, strict=True):
            item.answer = answer if _sampling(item).logprobs else replace(answer, logprob=None)

    def _run(self, rows: list[Row], steps: list[SequenceStep]) -> list[Sampled]:
        if not rows:
            return []
        values = self.program.value(self._logits, len(rows))
        for number, row in enumerate(rows):
            # The sampler takes finite logits only; ids that may be sampled come in a separate mask.
            np.maximum(row, _LEAST, out=values[number])
        self._batch.fill(steps)
        self.program.run(self._batch.struct)
        return list(self._batch.sampled(steps))


def _is_resampled(step: SequenceStep) -> bool:
    return step.processing is not None and not step.candidates


def _resampling_step(item: _Resampled) -> SequenceStep:
    """Return a step of one token that samples as the original does, from the processed row."""
    changes = LogitChanges(allowed=allowed_bits(item.row)) if is_cut(item.row) else None
    sampling = replace(_sampling(item), logprobs=False, top_logprobs=0)
    return SequenceStep((0,), 0, (0,), sampling, item.step.position, item.step.index, changes=changes)


def _forced_steps(again: Sequence[_Resampled]) -> Iterator[SequenceStep]:
    for item in again:
        assert item.answer.token_id is not None, "only rows with a sampled id come here"
        yield forced_step(item.answer.token_id, _sampling(item).top_logprobs)


def _wants_logprobs(item: _Resampled) -> bool:
    sampling = _sampling(item)
    return item.answer.token_id is not None and bool(sampling.logprobs or sampling.top_logprobs)


def _sampling(item: _Resampled) -> SamplingParams:
    assert item.step.sampling is not None, "only sampled rows come here"
    return item.step.sampling
