"""What a backend must do: run one step for a batch of sequences over a paged KV pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace_engine.config import ComputeDtype, ComputeUnit, SamplingParams
from headrace_engine.model_types import ModelPhase

Progress = Callable[[ModelPhase, int, int | None], None]
"""Called with the phase, the bytes done, and the bytes in all where known."""


def _ids() -> array[int]:
    return array("i")


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class LogitChanges:
    """What is done to a sequence's logits before the cuts: penalties, then biases, then what may not be drawn.

    Arithmetic is in float32, and what it makes is kept finite. Ids outside the vocabulary are passed over. The arrays
    belong to the sequence: they hold for one step, and change before its next.

    Attributes:
        repetition: multiplies negative logits of the penalized ids, and divides the others; float32.
        penalized: ids, each once.
        penalties: of each of them, taken from its logit after the repetition penalty.
        biased: ids, each once.
        biases: of each of them, added to its logit.
        allowed: ids that may be drawn: bit i % 32 of word i // 32 for id i, beyond the last word none; None: all may.
    """

    repetition: float = 1.0
    penalized: array[int] = field(default_factory=_ids)
    penalties: array[float] = field(default_factory=_numbers)
    biased: array[int] = field(default_factory=_ids)
    biases: array[float] = field(default_factory=_numbers)
    allowed: array[int] | None = None


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's share of a step.

    Attributes:
        token_ids: ids to compute, at positions start, start + 1, …; at least one.
        start: tokens of the sequence whose keys and values are in its blocks already.
        blocks: its block table; token t lies in blocks[t // block_size] at offset t % block_size.
            Covers at least start + len(token_ids) tokens.
        sampling: how to draw the token after the last of token_ids; None: not wanted (a chunk inside the prompt).
        position: number of tokens generated before the one to draw, for the random numbers.
        index: number of the sequence in its request, for the random numbers.
        masked_ids: ids that may not be drawn in this step; one may stand there twice.
        changes: what else is done to the logits; None: nothing.
    """

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    sampling: SamplingParams | None = None
    position: int = 0
    index: int = 0
    masked_ids: Sequence[int] = ()
    changes: LogitChanges | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token drawn for one sequence.

    Attributes:
        token_id: the id; None where none may be drawn, or where error says why.
        logprob: log-softmax of the model's own logits at token_id; None unless asked for.
        top: the most likely ids by the model's own logits, with their log-softmax, as many as were asked for and the
            vocabulary has: most likely first, of equal ones the lowest id.
        error: why no token could be drawn ("logits are not finite"); "" where none went wrong.
    """

    token_id: int | None
    logprob: float | None = None
    error: str = ""
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """What the backend chose and what it takes. Bytes of weights and workspace are in device memory."""

    devices: tuple[str, ...]
    dtype: ComputeDtype
    compute_unit: ComputeUnit
    num_threads: int
    max_length: int
    num_blocks: int
    weight_bytes: int
    workspace_bytes: int
    kv_bytes: int


class Runner(ABC):
    """One model on one device. Called from one thread: load, size, allocate, then run again and again, then close."""

    @abstractmethod
    def load(self, progress: Progress) -> None:
        """Put the weights on the device.

        Raises:
            BadModel: a tensor is missing, mis-shaped, truncated or of an unsupported type.
            InvalidArgument: the device or dtype that the plan asks for is not to be had.
        """

    @abstractmethod
    def size(self) -> RunnerSizes:
        """Measure what the largest step takes, and choose the number of KV blocks.

        Raises:
            OutOfMemory: not even one sequence of max_length fits; the message says what to lower.
        """

    @abstractmethod
    def allocate(self, num_blocks: int) -> None:
        """Allocate the KV pool of num_blocks blocks."""

    @abstractmethod
    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute all steps as one mixed batch.

        Appends keys and values to the blocks, and returns one Sampled for each step that has `sampling`, in order.
        A row whose logits are not finite gives a Sampled with an error and touches no other row.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the pool, the workspace and the weights."""
