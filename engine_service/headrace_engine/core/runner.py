"""What a backend must do: run one step for a batch of sequences over a paged KV pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace_engine.core.flight import Flight, Landed
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.messages import RunnerSizes
from headrace_engine.model_types import ModelPhase
from headrace_engine.sampling_params import SamplingParams

Progress = Callable[[ModelPhase, int, int | None], None]
"""Called with the phase, the bytes done, and the bytes in all where known."""


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
    penalized: array[int] = field(default_factory=lambda: array("i"))
    penalties: array[float] = field(default_factory=lambda: array("d"))
    biased: array[int] = field(default_factory=lambda: array("i"))
    biases: array[float] = field(default_factory=lambda: array("d"))
    allowed: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Processing:
    """Code of the engine's operator that changes a sequence's logits after LogitChanges.

    Attributes:
        processors: in the order in which they are called.
        ids: all of the sequence, prompt and generated. Belongs to the sequence, and grows with its next step.
    """

    processors: Sequence[LogitsProcessor]
    ids: array[int]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Ids of a prompt whose log-probabilities are wanted.

    Attributes:
        first: the row of the step, from 0, that tells of the first of them; each row tells of the id after it.
        ids: the ids; at most as many as there are rows from first on.
        top: most likely ids that are wanted with each.
    """

    first: int
    ids: Sequence[int]
    top: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """What a Scoring asked for, by the model's own logits.

    Attributes:
        logprobs: log-softmax at each of the ids.
        top_ids: the most likely ids in the place of each, one place after the other; as many as were asked for and
            the vocabulary has, most likely first, of equal ones the lowest id.
        top_logprobs: log-softmax of each of them.
    """

    logprobs: Sequence[float]
    top_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every row.
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
        processing: what is done to them last; what may not be drawn before it may not be drawn after it. None: nothing.
        scoring: ids of the prompt whose log-probabilities are wanted; None: none.
        tensors: the vectors of the row that draws are wanted.
        drawn_at: the id to compute is what the step launched before this one draws in its row of this number, from 0;
            token_ids have one id, which is of no matter. None: they are known.
    """

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    sampling: SamplingParams | None = None
    position: int = 0
    index: int = 0
    masked_ids: Sequence[int] = ()
    changes: LogitChanges | None = None
    processing: Processing | None = None
    scoring: Scoring | None = None
    tensors: bool = False
    drawn_at: int | None = None

    @property
    def answered(self) -> bool:
        """There is something to tell about it."""
        return self.sampling is not None or self.scoring is not None


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every row.
class Sampled:
    """The token drawn for one sequence, and what else its step asked for.

    Attributes:
        token_id: the id; None where none is wanted or may be drawn, or where error says why.
        logprob: log-softmax of the model's own logits at token_id; None unless asked for.
        top: the most likely ids by the model's own logits, with their log-softmax, as many as were asked for and the
            vocabulary has: most likely first, of equal ones the lowest id.
        error: why no token could be drawn ("logits are not finite"); "" where none went wrong.
        scores: of the ids of the step's scoring.
        tensors: of the row that drew, where they were asked for, two vectors of the hidden size as little-endian
            float32: its id's embedding, and its last hidden state, after the final norm, which the head multiplies.
    """

    token_id: int | None
    logprob: float | None = None
    error: str = ""
    top: Sequence[tuple[int, float]] = ()
    scores: Scores | None = None
    tensors: bytes = b""


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Whole blocks to copy between the KV pool and host memory.

    Attributes:
        to_host: block of the pool and host block of each that leaves; no host block twice.
        to_pool: host block and block of the pool of each that comes back; neither twice.
    """

    to_host: Sequence[tuple[int, int]] = ()
    to_pool: Sequence[tuple[int, int]] = ()

    def __bool__(self) -> bool:
        """There is something to copy."""
        return bool(self.to_host or self.to_pool)


NO_COPIES = BlockCopies()


class Runner(ABC):
    """One model on one device. Called from one thread: load, size, allocate, then run again and again, then close."""

    idle_processors: Mapping[str, str] = MappingProxyType({})
    """Once it is loaded: the plan's logits processors that it cannot run, by name, each with why."""

    takes_all_at_once = False
    """Nothing is allocated or compiled after `allocate`: the warm-up need not reach the most tokens of a step."""

    @property
    def progress(self) -> int:
        """What it has done so far, in a unit of its own: grows while a step is computed. Any thread may ask."""
        return 0

    def interrupt(self) -> None:  # noqa: B027 (a runner need not be able to)
        """Nobody wants what it computes: let a step under way raise as soon as it can. Any thread may call it."""

    @abstractmethod
    def load(self, progress: Progress) -> None:
        """Put the weights on the device.

        Raises:
            BadModel: a tensor is missing, mis-shaped, truncated or of an unsupported type.
            BadProcessor: a logits processor cannot be read or compiled.
            InvalidArgument: the device or dtype that the plan asks for is not to be had.
        """

    @abstractmethod
    def size(self) -> RunnerSizes:
        """Measure what the largest step takes, and choose the number of KV blocks.

        Raises:
            OutOfMemory: not even one sequence of max_length fits; the message says what to lower.
        """

    @abstractmethod
    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Allocate the KV pool of num_blocks blocks, and num_host_blocks blocks in host memory."""

    @abstractmethod
    def copy_blocks(self, copies: BlockCopies) -> None:
        """Copy blocks, keys and values of all layers: first all that leave the pool, then all that come back.

        Takes effect after the steps run before and before those run next, as far as those can tell. A host block that
        both receives and gives in one call gives what it received.
        """

    @abstractmethod
    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute all steps as one mixed batch.

        Appends keys and values to the blocks, and returns one Sampled for each step that has `sampling` or `scoring`,
        in order. Logits of scored rows are computed some rows at a time, never all at once. A row whose logits are
        not finite gives a Sampled with an error and touches no other row.
        """

    def launch(self, steps: Sequence[SequenceStep]) -> Flight:
        """Begin a step, to be computed as by `run`, and do not wait for it where that is possible.

        One other step may be under way, and no more. Whatever is launched, run or copied takes effect in the order of
        the calls, so that blocks may be given to others as soon as no further step is to use them. A row whose
        `drawn_at` names one that drew nothing computes anything: its results are of no use.
        """
        return Landed(self.run(steps))

    @abstractmethod
    def close(self) -> None:
        """Free the pool, the workspace and the weights."""
