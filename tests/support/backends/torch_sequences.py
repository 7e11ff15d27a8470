"""Drives the torch backend's decoder by hand: sequences in shuffled blocks of a pool whose unused slots hold NaN."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from headrace_engine.backends.torch.loading import LoadedModel, load_model
from headrace_engine.backends.torch.runner import make_batch
from headrace_engine.core.runner import SequenceStep
from headrace_engine.models.ops import Batch, Extent
from headrace_engine.sampling_params import SamplingParams
from torch import Tensor

from support.backends.runners import plan_for, silent

EVERYTHING = 1 << 30
"""Chunk size that no prompt exceeds."""


def load(path: Path | str, **changes: Any) -> LoadedModel:
    """Return the model with the torch backend's weights, in float32 by default."""
    return load_model(plan_for(path, **changes), silent)


@dataclass
class Lane:
    """One sequence: its ids, its blocks, how many ids were computed, the logits after each sampled row, its adapter."""

    ids: list[int]
    blocks: list[int]
    computed: int = 0
    scores: list[Tensor] = field(default_factory=list)
    adapter: int = 0

    @property
    def waiting(self) -> int:
        """Number of ids not computed yet."""
        return len(self.ids) - self.computed


class Lanes:
    """Sequences over one pool.

    Args:
        model: the decoder, as the torch backend loads it; in a subclass, as `open` takes it.
        tokens: minimum number of tokens that the pool holds.
        block_size: tokens of a block.
        seed: seed of the order in which blocks are allocated.
    """

    def __init__(self, model: Any, *, tokens: int = 2048, block_size: int = 16, seed: int = 0) -> None:
        self.block_size = block_size
        self._free = list(range(-(-tokens // block_size)))
        random.Random(seed).shuffle(self._free)
        self.open(model, len(self._free))

    def open(self, model: Any, num_blocks: int) -> None:
        """Create the pool, filled with NaN."""
        self.pool = model.pool(num_blocks, self.block_size)
        self._decoder = model.decoder(self.pool)
        for tensor in self.pool.tensors:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0xFF)

    def add(
        self, ids: Sequence[int], *, new_tokens: int = 0, shared: Lane | None = None, shared_tokens: int = 0
    ) -> Lane:
        """Add a sequence with blocks for its ids and `new_tokens` more, the first of them those of `shared`."""
        assert shared_tokens % self.block_size == 0
        first = shared.blocks[: shared_tokens // self.block_size] if shared else []
        count = -(-(len(ids) + new_tokens) // self.block_size) - len(first)
        own, self._free = self._free[:count], self._free[count:]
        assert len(own) == count, "the pool is too small for this test"
        return Lane(list(ids), [*first, *own], shared_tokens)

    def step(self, *shares: tuple[Lane, int]) -> None:
        """Run one batch: the next `count` ids of each lane. A lane with none left after that gets logits."""
        steps, wanting = [], []
        for lane, count in shares:
            wanted = count == lane.waiting
            ids = lane.ids[lane.computed : lane.computed + count]
            sampling = SamplingParams() if wanted else None
            steps.append(SequenceStep(ids, lane.computed, lane.blocks, sampling, adapter=lane.adapter))
            lane.computed += count
            wanting += [lane] if wanted else []
        for lane, scores in zip(wanting, self.logits(steps), strict=True):
            lane.scores.append(scores)

    def logits(self, steps: Sequence[SequenceStep]) -> Tensor:
        """Compute a batch; return its logits rows."""
        with torch.inference_mode():
            logits: Tensor = self._decoder.forward(make_batch(steps))
        return logits

    def follow(self, lane: Lane, ids: Sequence[int]) -> Tensor:
        """Append given ids, all in one step; return the logits after each, [ids, vocab]."""
        extent = Extent(0, len(ids), lane.computed, lane.blocks, lane.adapter)
        lane.ids += ids
        lane.computed = len(lane.ids)
        with torch.inference_mode():
            logits: Tensor = self._decoder.forward(Batch(ids, [extent], range(len(ids))))
        return logits

    def greedy(self, lanes: Sequence[Lane], count: int, *, chunk: int = EVERYTHING, stagger: int = 0) -> None:
        """Generate `count` ids for each lane in shared batches.

        Args:
            chunk: maximum ids of one lane in one step.
            stagger: steps after which the next lane begins; 0: all at once.
        """
        clock = 0
        while any(len(lane.scores) < count for lane in lanes):
            begun = lanes[: clock // stagger + 1] if stagger else lanes
            active = [lane for lane in begun if len(lane.scores) < count]
            self.step(*((lane, min(chunk, lane.waiting)) for lane in active))
            for lane in active:
                if not lane.waiting:
                    lane.ids.append(int(lane.scores[-1].argmax()))
            clock += 1


def random_ids(count: int, seed: int, vocab: int = 384) -> list[int]:
    """Return random ids of a prompt."""
    return [random.Random(seed * 1000 + place).randrange(vocab) for place in range(count)]


def reference(path: Path | str) -> Any:
    """Return the same model in transformers, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def reference_logits(path: Path | str, ids: Sequence[int]) -> Tensor:
    """Return the logits of transformers after each id, [ids, vocab]."""
    with torch.inference_mode():
        logits: Tensor = reference(path)(torch.tensor([list(ids)])).logits[0]
    return logits
