"""What a backend must do: run one step for a batch of sequences over a paged KV pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_engine.config import ComputeDtype, ComputeUnit, SamplingParams
from headrace_engine.model_types import ModelPhase

Progress = Callable[[ModelPhase, int, int | None], None]
"""Called with the phase, the bytes done, and the bytes in all where known."""


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
        masked_ids: ids that may not be drawn in this step.
    """

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    sampling: SamplingParams | None = None
    position: int = 0
    index: int = 0
    masked_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token drawn for one sequence.

    Attributes:
        token_id: the id; None where every id is masked, or where error says why.
        logprob: log-softmax of the model's own logits at token_id; None unless asked for.
        error: why no token could be drawn ("logits are not finite"); "" where none went wrong.
    """

    token_id: int | None
    logprob: float | None = None
    error: str = ""


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
