"""Computes steps: those with few rows replay a captured graph; all others are launched op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch
from headrace_engine.backends.cuda.device.buckets import prompt_sizes
from headrace_engine.backends.cuda.device.flash import FLASH
from headrace_engine.backends.cuda.device.graphs import DecodeGraphs, PromptGraphs, empty_step
from headrace_engine.backends.cuda.device.in_flight import DEPTH, InFlightDeviceStep
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.plain import NOT_CAPTURED
from headrace_engine.backends.cuda.sampling import DeviceSampler, PlainSampler, SampledRow
from headrace_engine.backends.extra_outputs import wants_extras
from headrace_engine.backends.processors import is_processed
from headrace_engine.backends.torch.runner import make_batch
from headrace_engine.backends.torch.sampling.extra_outputs import collect_from_states
from headrace_engine.backends.torch.sampling.sampler import ProcessRow, sample
from headrace_engine.core.in_flight import FinishedStep, InFlightStep
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.errors import Internal
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.ops import Batch


class StepRunner:
    """Steps of a model over one pool.

    Args:
        model: the weights on their device.
        pool: keys and values.
        process: runs logits processors on a row; None: there are none.
    """

    def __init__(self, model: CudaModel, pool: KvPool, process: ProcessRow | None = None) -> None:
        self._model = model
        self._pool = pool
        self._process = process
        self._staging = model.staging()
        self._decoder: Decoder[Tensor, CudaBatch] = model.decoder(pool, self._staging)
        self._sampler: DeviceSampler | PlainSampler = (
            PlainSampler()
            if "sample_rows" in model.plain
            else DeviceSampler(model.device, model.sizes.sequences, model.spec.vocab_size)
        )
        self._graphs: DecodeGraphs | None = None
        self._prompt_graphs: PromptGraphs | None = None
        self._slots: list[InFlightDeviceStep | None] = [None] * DEPTH
        self._slot = 0
        self._logits_rows: Sequence[int] = ()

    @property
    def staged_bytes(self) -> int:
        """Bytes of the staging buffers on the device."""
        return self._staging.nbytes + self._sampler.nbytes

    @property
    def progress(self) -> int:
        """Number of products and attentions launched so far."""
        return self._decoder.done

    def interrupt(self) -> None:
        """Stop launching the rest of the step."""
        self._decoder.interrupt()

    @property
    def captures_prompts(self) -> bool:
        """True if `capture` captures steps with prompts, whose attention then must not be planned on the host."""
        model = self._model
        return model.paged is None and FLASH not in model.plain and not NOT_CAPTURED & model.plain

    def capture(self) -> None:
        """Capture steps of few rows, as far as all ops allow it; other steps are launched op by op."""
        if NOT_CAPTURED & self._model.plain:
            return
        model, largest = self._model, self._model.sizes.sequences
        self._sampler.fill([], largest)
        with torch.inference_mode():
            # Graphs hold addresses of weights, pool and buffers, all held by this object and never allocated again.
            self._graphs = DecodeGraphs(
                model.device, largest, self._pool.spare_block, self._staging.fill, self._compute
            )
            if self.captures_prompts:
                self._prompt_graphs = PromptGraphs(
                    model.device,
                    model.sizes.rows,
                    self._pool.spare_block,
                    self._staging.fill,
                    self._decoder.last_states,
                )

    def compute_padding(self) -> None:
        """Compute the largest of the captured steps with prompts op by op, to measure its memory."""
        empty = empty_step(self._pool.spare_block)
        with torch.inference_mode():
            self._staging.fill(empty, padded=prompt_sizes(self._model.sizes.rows)[-1])
            self._decoder.last_states(empty)

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute all steps as one batch, and sample a token for each that has `sampling`."""
        return self.launch(steps).wait()

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """Enqueue all steps as one batch. Wait for the results only if the host takes part in computing them."""
        self._next_slot()
        batch = make_batch(steps)
        fill = partial(self._staging.fill, sources=self._sources(batch, steps), slot=self._slot)
        with torch.inference_mode():
            if wants_extras(steps) or is_processed(steps):
                return FinishedStep(self._collect_extras(batch, steps, fill))
            if self._graphs is not None and _is_captured(batch):
                sampled_rows = [(row, step) for row, step in enumerate(steps) if step.sampling is not None]
                self._sampler.fill(sampled_rows, self._graphs.rows(len(steps)), self._slot)
                self._graphs.run(batch.token_ids, batch.extents, fill)
                self._logits_rows = range(len(steps))
            elif self._prompt_graphs is not None and self._prompt_graphs.takes(batch) and not _adapted(batch):
                sampled_rows = self._fill(steps)
                self._sample(self._decoder.logits(self._prompt_graphs.run(batch, fill)))
            else:
                sampled_rows = self._fill(steps)
                fill(batch)
                self._compute(batch)
            return self._flight(sampled_rows)

    def _next_slot(self) -> None:
        """Advance to the next slot; the results of its previous step must have been read."""
        slot = (self._slot + 1) % DEPTH
        before = self._slots[slot]
        if before is not None and not before.waited:
            raise Internal(f"{DEPTH} steps are in flight, and another one was launched")
        self._slot = slot

    def _sources(self, batch: Batch, steps: Sequence[SequenceStep]) -> dict[int, int]:
        """Return, by row whose id is not known yet, the logits row of the previous step that samples it."""
        pairs = zip(batch.extents, steps, strict=True)
        return {extent.row: self._logits_rows[step.sampled_at] for extent, step in pairs if step.sampled_at is not None}

    def _fill(self, steps: Sequence[SequenceStep]) -> list[SampledRow]:
        """Upload sampling parameters of the rows that need logits, and return those rows."""
        sampled_rows = list(enumerate(step for step in steps if step.sampling is not None))
        self._sampler.fill(sampled_rows, len(sampled_rows), self._slot)
        self._logits_rows = [count - 1 for count in accumulate(step.sampling is not None for step in steps)]
        return sampled_rows

    def _flight(self, sampled_rows: Sequence[SampledRow]) -> InFlightStep:
        """Enqueue the copy of the results, and return the in-flight step."""
        self._sampler.fetch(sampled_rows, self._slot)
        launched = InFlightDeviceStep(
            self._model.device.mark(), partial(self._sampler.sampled, sampled_rows, self._slot)
        )
        if self._sampler.ids is None:
            return FinishedStep(launched.wait())
        # The slot is the step's until somebody has waited for it.
        self._slots[self._slot] = launched
        return launched

    def _compute(self, batch: Batch) -> None:
        self._sample(self._decoder.forward(batch))

    def _sample(self, logits: Tensor) -> None:
        if len(logits):
            self._sampler.sample(logits)
            if self._sampler.ids is not None:
                # A copy: the next step reads these ids before it samples, and then overwrites the sampler's.
                self._staging.save_ids(self._sampler.ids[: len(logits)])

    def _processed(self, sampled_rows: Sequence[SampledRow], sampled: list[Sampled], logits: Tensor) -> list[Sampled]:
        """Return the results; rows with logits processors or candidates are sampled again with torch's operators."""
        processed = [(row, step) for row, step in sampled_rows if is_processed([step])]
        if not processed:
            return sampled
        rows = [row for row, _ in processed]
        again = sample(logits[rows], [step for _, step in processed], self._process)
        for row, answer in zip(rows, again, strict=True):
            sampled[row] = answer
        return sampled

    def _collect_extras(
        self, batch: Batch, steps: Sequence[SequenceStep], fill: Callable[[Batch], object]
    ) -> list[Sampled]:
        """Compute a step with extra outputs or processed logits, which needs the hidden states of all rows."""
        decoder = self._decoder
        sampled_rows = self._fill(steps)
        fill(batch)
        states = decoder.states(batch)
        selected = states[batch.logits_rows]
        logits = decoder.logits(selected)
        self._sample(logits)
        sampled = self._processed(sampled_rows, self._flight(sampled_rows).wait(), logits)
        return collect_from_states(decoder, steps, sampled, states, selected, self._model.embedding)


def _is_captured(batch: Batch) -> bool:
    """True if a step is one of those that are captured as a whole: one token a sequence, without adapters."""
    return len(batch.extents) == len(batch.token_ids) and not _adapted(batch)


def _adapted(batch: Batch) -> bool:
    return any(extent.adapter for extent in batch.extents)
