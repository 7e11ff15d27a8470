"""Computes steps: those of one token a sequence by replaying a captured one, all others as they come."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.drawing import Draw, Drawing, PlainDrawing
from headrace_engine.backends.cuda.graphs import DecodeGraphs
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.plain import NOT_CAPTURED
from headrace_engine.backends.cuda.pool import KvPool
from headrace_engine.backends.processors import is_processed
from headrace_engine.backends.telling import asks_more, tell
from headrace_engine.backends.torch.runner import make_batch
from headrace_engine.backends.torch.sampler import ProcessRow, sample
from headrace_engine.backends.torch.workspace import rows_at_once
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.models.decoder import Batch, Decoder


class StepRunner:
    """Steps of a model over one pool.

    Args:
        model: the weights on their device.
        pool: keys and values.
        process: lets logits processors change a row; None: there are none.
    """

    def __init__(self, model: CudaModel, pool: KvPool, process: ProcessRow | None = None) -> None:
        self._model = model
        self._pool = pool
        self._process = process
        self._staging = StepStaging(model.device, model.sizes)
        self._decoder: Decoder[Tensor, CudaBatch] = model.decoder(pool, self._staging)
        self._drawing: Drawing | PlainDrawing = (
            PlainDrawing()
            if "sample_rows" in model.plain
            else Drawing(model.device, model.sizes.sequences, model.spec.vocab_size)
        )
        self._graphs: DecodeGraphs | None = None

    @property
    def staged_bytes(self) -> int:
        """Bytes on the device that what the host tells takes."""
        return self._staging.nbytes + self._drawing.nbytes

    def capture(self) -> None:
        """Capture the steps of one token a sequence, where all ops allow it; the others are computed as they come."""
        if NOT_CAPTURED & self._model.plain:
            return
        model, largest = self._model, self._model.sizes.sequences
        self._drawing.fill([], largest)
        with torch.inference_mode():
            self._graphs = DecodeGraphs(
                model.device, largest, self._pool.spare_block, self._staging.fill, self._compute
            )

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute all steps as one batch, and draw a token for each that wants one."""
        batch = make_batch(steps)
        with torch.inference_mode():
            if asks_more(steps):
                return self._tell(batch, steps)
            one_each = len(batch.extents) == len(batch.token_ids)
            if self._graphs is not None and one_each and not is_processed(steps):
                draws = [(row, step) for row, step in enumerate(steps) if step.sampling is not None]
                self._drawing.fill(draws, self._graphs.rows(len(steps)))
                self._graphs.run(batch.token_ids, batch.extents)
            else:
                draws = list(enumerate(step for step in steps if step.sampling is not None))
                self._drawing.fill(draws, len(draws))
                self._staging.fill(batch)
                logits = self._decoder.forward(batch)
                self._draw(logits)
                return self._processed(draws, self._drawn(draws), logits)
            return self._drawn(draws)

    def _compute(self, batch: Batch) -> None:
        self._draw(self._decoder.forward(batch))

    def _draw(self, logits: Tensor) -> None:
        if len(logits):
            self._drawing.draw(logits)

    def _drawn(self, draws: Sequence[Draw]) -> list[Sampled]:
        self._model.device.mark().wait()
        return list(self._drawing.drawn(draws))

    def _processed(self, draws: Sequence[Draw], drawn: list[Sampled], logits: Tensor) -> list[Sampled]:
        """What was drawn, with rows that logits processors change drawn again, by torch's operators."""
        rows = [row for row, step in draws if step.processing is not None]
        if not rows:
            return drawn
        again = sample(logits[rows], [step for _, step in draws if step.processing is not None], self._process)
        for row, answer in zip(rows, again, strict=True):
            drawn[row] = answer
        return drawn

    def _tell(self, batch: Batch, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """More than tokens is asked for, so that hidden states of all rows are needed."""
        decoder = self._decoder
        draws = list(enumerate(step for step in steps if step.sampling is not None))
        self._drawing.fill(draws, len(draws))
        self._staging.fill(batch)
        states = decoder.states(batch)
        selected = states[batch.wanted]
        logits = decoder.logits(selected)
        self._draw(logits)
        drawn = self._processed(draws, self._drawn(draws), logits)

        def vectors(number: int, token_id: int) -> bytes:
            return _bytes(self._model.embedding(token_id)) + _bytes(selected[number])

        return tell(steps, drawn, partial(self._score, states), rows_at_once(decoder.vocab_size), vectors)

    def _score(self, states: Tensor, rows: list[int], steps: list[SequenceStep]) -> list[Sampled]:
        return sample(self._decoder.logits(states[rows]), steps)


def _bytes(vector: Tensor) -> bytes:
    return vector.float().cpu().numpy().tobytes()
