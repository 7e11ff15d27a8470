"""Rows of a step that logits processors change: drawn again from what those leave, by a program of one op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.changed_row import Row, allowed_bits, changed_row
from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.backends.cpu.scoring import rows_at_once, small_shape
from headrace_engine.backends.extra_outputs import forced_step
from headrace_engine.backends.processors import Process, is_cut, run_processes
from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
from headrace_engine.native import Cpu, Memory, Program, Rows, Shape, Value
from headrace_engine.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0)
_LEAST = np.finfo(np.float32).min


def unprocessed(steps: Sequence[SequenceStep]) -> list[SequenceStep]:
    """The same rows, drawn as quickly as may be where they are drawn again."""
    return [step if step.processing is None else _plain(step) for step in steps]


def _plain(step: SequenceStep) -> SequenceStep:
    return replace(step, sampling=step.sampling and _GREEDY, masked_ids=(), changes=None)


@dataclass(slots=True)
class _Draw:
    """A row that is drawn again.

    Attributes:
        number: among the rows of logits.
        row: the logits that it is drawn from.
    """

    number: int
    step: SequenceStep
    row: Row
    answer: Sampled


class ProcessedRows:
    """Logits processors, and the sampler for what they leave.

    Args:
        shape: of the step's program.
        processes: the processors by name.

    Attributes:
        program: what it runs.
    """

    def __init__(self, cpu: Cpu, shape: Shape, processes: Mapping[str, Process]) -> None:
        self._processes = processes
        self._at_once = rows_at_once(shape.vocab)
        self._logits = Value(0, shape.vocab, Rows.LOGITS)
        self.program = Program(cpu, small_shape(shape, self._at_once * shape.vocab, self._at_once))
        self.program.sample(self._logits)

    def bind(self, pool: Memory, num_blocks: int) -> None:
        """Allocate its workspace. A program has a pool; of this one it reads and writes nothing."""
        self.program.bind(pool, num_blocks)
        self._batch = CpuBatch(self.program.shape)

    def draw(
        self, steps: Sequence[SequenceStep], drawn: Iterable[Sampled], logits: NDArray[np.float32]
    ) -> list[Sampled]:
        """What was drawn, with rows that are processed drawn anew.

        Args:
            drawn: of the steps with `sampling`, as they were drawn unprocessed.
            logits: the model's own, [those steps, vocab].
        """
        answers = list(drawn)
        drawing = [step for step in steps if step.sampling is not None]
        numbers = [n for n, step in enumerate(drawing) if step.processing is not None and not answers[n].error]
        for first in range(0, len(numbers), self._at_once):
            part = [self._processed(n, drawing[n], logits[n]) for n in numbers[first : first + self._at_once]]
            self._draw([draw for draw in part if not draw.answer.error], logits)
            for draw in part:
                answers[draw.number] = draw.answer
        return answers

    def _processed(self, number: int, step: SequenceStep, own: Row) -> _Draw:
        row = changed_row(own, step)
        assert step.processing is not None, "only processed rows come here"
        return _Draw(number, step, row, Sampled(None, error=run_processes(row, step.processing, self._processes)))

    def _draw(self, draws: list[_Draw], logits: NDArray[np.float32]) -> None:
        """Draw from the changed rows, then tell of those drawn by the model's own."""
        sampled = self._run([draw.row for draw in draws], [_redrawn(draw) for draw in draws])
        for draw, answer in zip(draws, sampled, strict=True):
            draw.answer = answer
        asking = [draw for draw in draws if _asks(draw)]
        told = self._run([logits[draw.number] for draw in asking], list(_told(asking)))
        for draw, answer in zip(asking, told, strict=True):
            draw.answer = answer if _sampling(draw).logprobs else replace(answer, logprob=None)

    def _run(self, rows: list[Row], steps: list[SequenceStep]) -> list[Sampled]:
        if not rows:
            return []
        place = self.program.value(self._logits, len(rows))
        for number, row in enumerate(rows):
            # The sampler takes numbers alone, and is told beside them what may be drawn.
            np.maximum(row, _LEAST, out=place[number])
        self._batch.fill(steps)
        self.program.run(self._batch.struct)
        return list(self._batch.drawn(steps))


def _redrawn(draw: _Draw) -> SequenceStep:
    """A row of one token that draws as the step does, among what is left."""
    changes = LogitChanges(allowed=allowed_bits(draw.row)) if is_cut(draw.row) else None
    sampling = replace(_sampling(draw), logprobs=False, top_logprobs=0)
    return SequenceStep((0,), 0, (0,), sampling, draw.step.position, draw.step.index, changes=changes)


def _told(draws: Sequence[_Draw]) -> Iterator[SequenceStep]:
    for draw in draws:
        assert draw.answer.token_id is not None, "an id that was drawn is told of"
        yield forced_step(draw.answer.token_id, _sampling(draw).top_logprobs)


def _asks(draw: _Draw) -> bool:
    sampling = _sampling(draw)
    return draw.answer.token_id is not None and bool(sampling.logprobs or sampling.top_logprobs)


def _sampling(draw: _Draw) -> SamplingParams:
    assert draw.step.sampling is not None, "only rows that draw come here"
    return draw.step.sampling
