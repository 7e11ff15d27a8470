"""Computes steps: those of one token a sequence by replaying a captured one, all others as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.device.graphs import DecodeGraphs
from headrace_engine.backends.cuda.device.in_flight import DEPTH, DeviceFlight
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.plain import NOT_CAPTURED
from headrace_engine.backends.cuda.sampling import Draw, Drawing, PlainDrawing
from headrace_engine.backends.extra_outputs import asks_more
from headrace_engine.backends.processors import is_processed
from headrace_engine.backends.torch.runner import make_batch
from headrace_engine.backends.torch.sampling.extra_outputs import tell_of_states
from headrace_engine.backends.torch.sampling.sampler import ProcessRow, sample
from headrace_engine.core.in_flight import FinishedStep, InFlightStep
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.errors import Internal
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
        self._slots: list[DeviceFlight | None] = [None] * DEPTH
        self._slot = 0
        self._places: Sequence[int] = ()

    @property
    def staged_bytes(self) -> int:
        """Bytes on the device that what the host tells takes."""
        return self._staging.nbytes + self._drawing.nbytes

    @property
    def progress(self) -> int:
        """Products and attentions that were launched."""
        return self._decoder.done

    def interrupt(self) -> None:
        """Launch no more of a step."""
        self._decoder.interrupt()

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
        return self.launch(steps).wait()

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """Enqueue all steps as one batch. Returns when they are computed only where the host has a part in that."""
        self._turn()
        batch = make_batch(steps)
        fill = partial(self._staging.fill, sources=self._sources(batch, steps), slot=self._slot)
        with torch.inference_mode():
            if asks_more(steps) or is_processed(steps):
                return FinishedStep(self._tell(batch, steps, fill))
            if self._graphs is not None and len(batch.extents) == len(batch.token_ids):
                draws = [(row, step) for row, step in enumerate(steps) if step.sampling is not None]
                self._drawing.fill(draws, self._graphs.rows(len(steps)), self._slot)
                self._graphs.run(batch.token_ids, batch.extents, fill)
                self._places = range(len(steps))
            else:
                draws = self._fill(steps)
                fill(batch)
                self._compute(batch)
            return self._flight(draws)

    def _turn(self) -> None:
        """Go on to the next slot."""
        slot = (self._slot + 1) % DEPTH
        before = self._slots[slot]
        if before is not None and not before.waited:
            raise Internal(f"{DEPTH} steps are under way, and another one was launched")
        self._slot = slot

    def _sources(self, batch: Batch, steps: Sequence[SequenceStep]) -> dict[int, int]:
        """By row: where the step before draws its id."""
        pairs = zip(batch.extents, steps, strict=True)
        return {extent.row: self._places[step.sampled_at] for extent, step in pairs if step.sampled_at is not None}

    def _fill(self, steps: Sequence[SequenceStep]) -> list[Draw]:
        """Tell the device how to draw from the rows whose logits are wanted, which come without the others."""
        draws = list(enumerate(step for step in steps if step.sampling is not None))
        self._drawing.fill(draws, len(draws), self._slot)
        self._places = [count - 1 for count in accumulate(step.sampling is not None for step in steps)]
        return draws

    def _flight(self, draws: Sequence[Draw]) -> InFlightStep:
        """What was enqueued, with the copy of what it draws."""
        self._drawing.fetch(self._slot)
        flight = DeviceFlight(self._model.device.mark(), partial(self._drawing.drawn, draws, self._slot))
        if self._drawing.ids is None:
            return FinishedStep(flight.wait())
        self._slots[self._slot] = flight
        return flight

    def _compute(self, batch: Batch) -> None:
        self._draw(self._decoder.forward(batch))

    def _draw(self, logits: Tensor) -> None:
        if len(logits):
            self._drawing.draw(logits)
            if self._drawing.ids is not None:
                self._staging.keep(self._drawing.ids[: len(logits)])

    def _processed(self, draws: Sequence[Draw], drawn: list[Sampled], logits: Tensor) -> list[Sampled]:
        """What was drawn, with rows that logits processors change drawn again, by torch's operators."""
        rows = [row for row, step in draws if step.processing is not None]
        if not rows:
            return drawn
        again = sample(logits[rows], [step for _, step in draws if step.processing is not None], self._process)
        for row, answer in zip(rows, again, strict=True):
            drawn[row] = answer
        return drawn

    def _tell(self, batch: Batch, steps: Sequence[SequenceStep], fill: Callable[[Batch], None]) -> list[Sampled]:
        """More than tokens is asked for, or logits are processed, so that hidden states of all rows are needed."""
        decoder = self._decoder
        draws = self._fill(steps)
        fill(batch)
        states = decoder.states(batch)
        selected = states[batch.wanted]
        logits = decoder.logits(selected)
        self._draw(logits)
        drawn = self._processed(draws, self._flight(draws).wait(), logits)
        return tell_of_states(decoder, steps, drawn, states, selected, self._model.embedding)
