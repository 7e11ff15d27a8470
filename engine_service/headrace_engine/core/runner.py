"""The interface of a backend: run one step for a batch of sequences over a paged KV pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headrace_engine.core.in_flight import FinishedStep, InFlightStep
from headrace_engine.core.row_fields import LogitChanges, Processing, PromptIds, PromptLogprobs
from headrace_engine.errors import Internal
from headrace_engine.ipc.messages import CoreFailed, RunnerSizes
from headrace_engine.ipc.plans import AdapterPlan
from headrace_engine.model_types import ModelPhase
from headrace_engine.sampling_params import SamplingParams

MOST_DRAFTS = 15
"""Maximum number of drafted ids of one sequence in a step."""

MOST_TOP = 20
"""Maximum number of top logprobs of a token."""

Progress = Callable[[ModelPhase, int, int | None], None]
"""Called with the phase, the bytes done, and the total bytes if known."""


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every row.
class SequenceStep:
    """One sequence's row of a step.

    Attributes:
        token_ids: ids to compute, at positions start, start + 1, …; at least one.
        start: number of tokens whose keys and values are already in the sequence's blocks.
        blocks: its block table; token t is in blocks[t // block_size] at offset t % block_size.
            Covers at least start + len(token_ids) tokens. Whoever passes the same object again has only appended to
            it: a backend may keep what it saw of it.
        sampling: how to sample the token after the last of token_ids; None: do not (a chunk inside the prompt).
        position: number of tokens generated before the one to sample, for the random numbers.
        index: number of the sequence in its request, for the random numbers.
        masked_ids: ids that may not be sampled in this step; may contain duplicates.
        changes: further changes to the logits; None: none.
        processing: final changes to the logits, which cannot allow an id that was masked before. None: none.
        prompt_logprobs: requests prompt logprobs; None: none.
        tensors: return the vectors of the row that samples.
        candidates: return this many candidates instead of a sampled token: the log-softmax of the logits is changed as
            logits would be, and processed. 0: sample.
        pooled: index of the first of token_ids whose last hidden states to sum, to the last one; None: none.
        sampled_at: row of the previously launched step that samples the id to compute, from 0; `token_ids` then holds
            one placeholder. None: the ids are known.
        adapter: number under which its adapter was loaded; 0: none.
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
    prompt_logprobs: PromptIds | None = None
    tensors: bool = False
    candidates: int = 0
    pooled: int | None = None
    sampled_at: int | None = None
    adapter: int = 0

    @property
    def has_result(self) -> bool:
        """True if the step returns a result for this row."""
        return self.sampling is not None or self.prompt_logprobs is not None or self.pooled is not None


Candidate = tuple[int, float, float]
"""An id, its changed log-probability, and its log-softmax by the model's own logits."""


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every row.
class Sampled:
    """The token sampled for one sequence, and what else its row requested.

    Attributes:
        token_id: the id; None if none was requested, none may be sampled, or the row failed (`error`).
        logprob: log-softmax of the model's own logits at token_id; None unless requested.
        top: the most likely ids by the model's own logits, with their log-softmax; as many as were requested, or the
            vocabulary has; most likely first, ties by lowest id.
        error: why no token could be sampled ("logits are not finite"); "" if the row succeeded.
        prompt_logprobs: the prompt logprobs that the row requested.
        tensors: if requested, two vectors of the hidden size as little-endian float32, of the token that was
            computed: its embedding, and its last hidden state, after the final norm, which the head multiplies.
        pooled: the sum that the row's `pooled` requested, after the final norm, as little-endian float64.
        candidates: if requested, the ids with the largest changed log-probabilities; most likely first, ties by lowest
            id. Ids that may not be sampled are left out. None: not requested.
    """

    token_id: int | None
    logprob: float | None = None
    error: str = ""
    top: Sequence[tuple[int, float]] = ()
    prompt_logprobs: PromptLogprobs | None = None
    tensors: bytes = b""
    pooled: bytes = b""
    candidates: Sequence[Candidate] | None = None


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Whole blocks to copy within the KV pool, and between it and the host tier.

    Attributes:
        to_host: pairs of pool block and host block to copy out; host blocks are distinct.
        within: pairs of pool blocks, from and to, copied one after the other.
        to_pool: pairs of host block and pool block to copy back; both are distinct.
    """

    to_host: Sequence[tuple[int, int]] = ()
    to_pool: Sequence[tuple[int, int]] = ()
    within: Sequence[tuple[int, int]] = ()

    def __bool__(self) -> bool:
        """Return True if there is anything to copy."""
        return bool(self.to_host or self.to_pool or self.within)


NO_COPIES = BlockCopies()


class Runner(ABC):
    """One model on one device. Called from one thread: load, size, allocate, then steps repeatedly, then close."""

    idle_processors: Mapping[str, str] = MappingProxyType({})
    """Logits processors of the plan that the loaded runner cannot run: the reason for each, by name."""

    lost: CoreFailed | None = None
    """Why it can compute nothing any more, if that shows outside its steps; may be read from any thread."""

    takes_all_at_once = False
    """True if nothing is allocated or compiled after `allocate`, so that the warm-up may run smaller steps."""

    @property
    def progress(self) -> int:
        """Work done so far, in arbitrary units; grows while a step is computed. May be read from any thread."""
        return 0

    def interrupt(self) -> None:  # noqa: B027 (a runner need not be able to)
        """Make the running step raise as soon as it can: its results are not needed. Callable from any thread."""

    @abstractmethod
    def load(self, progress: Progress) -> None:
        """Load the weights onto the device.

        Raises:
            BadModel: a tensor is missing, mis-shaped, truncated or of an unsupported type.
            BadProcessor: a logits processor cannot be read or compiled.
            InvalidArgument: the device or dtype that the plan requests is not available.
        """

    @abstractmethod
    def size(self) -> RunnerSizes:
        """Measure the memory of the largest step, and choose the number of KV blocks.

        Raises:
            OutOfMemory: not even one sequence of max_length fits; the message says what to lower.
        """

    @abstractmethod
    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Allocate the KV pool of num_blocks blocks, and num_host_blocks blocks in host memory."""

    def read_adapter(self, plan: AdapterPlan) -> Callable[[], None]:
        """Read and check an adapter's files, after `allocate`. May be called in a thread, while steps run.

        Returns:
            What loads it, on the thread that runs steps, while none is in flight: it replaces the one of its number.

        Raises:
            BadModel: its files have changed since they were checked, or it does not fit the model.
        """
        raise Internal(f"adapter {plan.number}: this runner takes none")

    @abstractmethod
    def copy_blocks(self, copies: BlockCopies) -> None:
        """Copy the keys and values of whole blocks, all layers: all to the host, then within the pool, then into it.

        Takes effect after the steps launched before and before those launched next. A host block that is both written
        and read in one call is written first.
        """

    @abstractmethod
    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute all steps as one mixed batch.

        Appends keys and values to the blocks, and returns one Sampled for each step that `has_result`, in order.
        Several steps may belong to one sequence if the plan has speculation: each starts where the one before it ends,
        and reads what that one appends. Logits for prompt logprobs are computed some rows at a time, never all at once.
        A row whose logits are not finite gives a Sampled with an error and affects no other row.
        """

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """Start a step, computed as by `run`, and return without waiting for it if the runner can.

        At most one other step may be in flight. Launches, runs and copies take effect in the order of the calls, so
        blocks may be reallocated as soon as no further step will use them. If the row named by `sampled_at` samples
        nothing, the dependent row computes an arbitrary id and its result must be dropped.
        """
        return FinishedStep(self.run(steps))

    def draft(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute steps by the draft model of the plan, as `run` does by the model.

        Its pool has as many blocks as the model's, so that both use the same block tables. All steps have ids, blocks
        and sampling, at most changes to the logits besides, and MOST_DRAFT_TOKENS ids together.
        """
        raise Internal("draft() without a draft model")

    @abstractmethod
    def close(self) -> None:
        """Free the pool, the workspace and the weights."""
