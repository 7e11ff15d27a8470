"""Computes prompt logprobs from last hidden states, by a small program besides that of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.backends.extra_outputs import forced_step
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Activations, Cpu, Memory, PackedMatrix, Product, Program, Rows, Shape, Value

_BYTES = 16 * 2**20
"""Maximum bytes of logits computed together, unless one row is larger."""

_ROWS = 64
"""Maximum rows computed together: more would hardly speed up the products."""

_FLOATS = 16
"""Alignment of values, in floats."""


class Scorer:
    """Runs the head and the sampler on a few rows at a time.

    Args:
        shape: shape of the step's program.
        spec: the decoder.
        weights: its weights by canonical name.
        share: what this rank holds of them; None: there is one.

    Attributes:
        program: the head and the sampler.
        rows: maximum number of rows at a time.
    """

    def __init__(
        self,
        cpu: Cpu,
        shape: Shape,
        spec: DecoderSpec,
        weights: Mapping[str, Any],
        activations: Activations,
        share: CpuShare | None = None,
    ) -> None:
        head: PackedMatrix = weights["embed" if spec.tied_head else "head"]
        vocab, hidden = spec.vocab_size, head.matrix.inputs
        self.rows = rows_at_once(vocab)
        self._states = Value(0, hidden, Rows.LOGITS)
        logits = Value(_aligned(self.rows * hidden), vocab, Rows.LOGITS)
        end = logits.offset + self.rows * vocab
        out = logits
        if share is not None:
            out = Value(_aligned(end), head.matrix.outputs, Rows.LOGITS)
            end = out.offset + self.rows * out.width
        self.program = Program(cpu, small_shape(shape, end, self.rows))
        self.program.linear(self._states, [Product(head, out, weights.get("head_bias"))], activations)
        if share is not None:
            self.program.gather(out, logits)
        if spec.logit_scale != 1 or spec.logit_soft_cap:
            self.program.scaled(logits, logits, spec.logit_scale, soft_cap=spec.logit_soft_cap)
        if share is None or share.rank == 0:
            self.program.sample(logits)

    def bind(self, pool: Memory, num_blocks: int) -> None:
        """Allocate the workspace. A program needs a pool, but this one does not access it."""
        self.program.bind(pool, num_blocks)
        self._batch = CpuBatch(self.program.shape)

    def run(self, states: NDArray[np.float32], steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Sample as each step specifies from the logits of a row.

        Args:
            states: [len(steps), hidden], at most `rows`.
            steps: one token each.
        """
        self._compute(states, steps)
        return list(self._batch.sampled(steps))

    def follow(self, states: NDArray[np.float32]) -> None:
        """Take part in `run` of rank 0, which alone samples."""
        self._compute(states, [forced_step(0, 0)] * len(states))

    def _compute(self, states: NDArray[np.float32], steps: Sequence[SequenceStep]) -> None:
        # Copied: `states` is a view of the step's workspace, and this program reads its own alone.
        self.program.value(self._states, len(steps))[:] = states
        self._batch.fill(steps)
        self.program.run(self._batch.struct)


def _aligned(floats: int) -> int:
    return -(-floats // _FLOATS) * _FLOATS


def rows_at_once(vocab: int) -> int:
    """Return the number of rows of logits that a small program computes together."""
    return max(1, min(_ROWS, _BYTES // (4 * vocab)))


def small_shape(shape: Shape, floats: int, rows: int) -> Shape:
    """Return the shape of a program for `rows` rows, besides that of the step.

    Args:
        floats: size of its workspace.
    """
    fields = {name: getattr(shape, name) for name, *_ in shape._fields_}
    rows_of = dict.fromkeys(("max_tokens", "max_sequences", "max_logits"), rows)
    return Shape(**{**fields, **rows_of, "workspace": floats, "max_positions": 1})
