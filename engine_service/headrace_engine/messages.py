"""What a core tells the front half: `ipc.py` encodes it, and keys are those of `commands.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.model_types import ModelProgress
from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """What the backend chose and what it takes. Bytes of weights, workspace and pool are in device memory.

    Attributes:
        num_host_blocks: blocks of the host tier, which lie in host_kv_bytes of host memory.
    """

    devices: tuple[str, ...]
    dtype: ComputeDtype
    compute_unit: ComputeUnit
    num_threads: int
    max_length: int
    num_blocks: int
    weight_bytes: int
    workspace_bytes: int
    kv_bytes: int
    num_host_blocks: int = 0
    host_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CoreReady(RunnerSizes):
    """Warm-up passed: every choice that was left to the core, every size, and as Runner has them, idle processors."""

    idle_processors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The core could not start, or a step failed as a whole. The core exits after it.

    Attributes:
        reason: BAD_MODEL, BAD_PROCESSOR, OUT_OF_MEMORY, INVALID_FIELD, NOT_SUPPORTED or ENGINE_FAULT.
        message: one sentence for a person.
        field: the wrong field of the runtime config; "" where none is.
    """

    reason: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class StepBegun:
    """These sequences are in the step that begins now, and in all after it until the next StepBegun.

    Where the step before is still under way, those of it too. Sent before the step is computed, so that the front half
    knows whose step it was that ended the core.
    """

    keys: list[int]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence was put into a step for the first time, with this many prompt tokens from the prefix cache.

    Attributes:
        host_tokens: how many of these came from host memory.
    """

    key: int
    cached_tokens: int
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Log-probabilities of consecutive tokens of a sequence's prompt.

    Attributes:
        position: place of the first token in the prompt, at least 1.
        logprobs: of each token.
        top_ids: the most likely ids in the place of each, one token after the other, equally many a token.
        top_logprobs: the log-probability of each of them.
    """

    key: int
    position: int
    logprobs: list[float]
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended in the core. Its last token, if the step brought one, stands in the same StepOutput."""

    key: int
    reason: FinishReason
    error: str = ""


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every step.
class StepOutput:
    """What one step brought, for all sequences. Row i of keys, token_ids and logprobs is one new token.

    Attributes:
        logprobs: log-probability of each token, or empty where no row asked; NaN in rows that did not ask.
        top_counts: most likely ids that were asked for with each token, or empty where no row asked.
        top_ids: those ids, one row after the other, most likely first.
        top_logprobs: the log-probability of each of them.
        tensors: bytes of the vectors of each token, as `Sampled.tensors`; empty where no row asked.
        prompts: what was told of prompts; a prompt is told whole before its first token.
        scheduled: sequences that were in a step for the first time.
        preempted: sequences that were put back for lack of blocks.
        ended: sequences that the core ended.
        step_time: seconds that the step took: since it was decided, or, if that is later, since the one before landed.
        batch_size: sequences in the step.
    """

    keys: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_counts: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    prompts: list[PromptPiece] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    stat: CoreStat = field(default_factory=CoreStat)
    step_time: float = 0.0
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a Ping.

    Attributes:
        progress: inside a step, what the runner has done so far, in a unit of its own; None: the core is between two.
    """

    number: int
    progress: int | None = None


CoreMessage = ModelProgress | CoreReady | CoreFailed | StepBegun | StepOutput | Pong
