"""What the front half and the core tell each other. `ipc.py` encodes these; nothing here knows how they travel.

A *key* is a number that the front half gives to a sequence and never uses twice for one core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_engine.config import (
    ActivationQuant,
    ComputeDtype,
    ComputeUnit,
    InterruptPolicy,
    KvCacheMode,
    LogitRules,
    LogitsProcessor,
    ModelFormat,
    RopeScaling,
    SamplingParams,
    WeightQuant,
)
from headrace_engine.model_types import ModelPhase
from headrace_engine.result_types import FinishReason


@dataclass(frozen=True, slots=True)
class ProcessorFile:
    """A logits processor by its name, and the file that has it; "": whoever launches the core has it."""

    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The first message to a core: the model, the backend, and every size that the caller chose.

    Attributes:
        path: the directory or file that holds the model, already resolved on this host.
        backend: name of the runner: "cpu", "torch", or "auto": chosen by the device.
        native_ops: let the backend use csrc where it can.
        num_threads: compute threads; 0 = physical cores within quota and affinity.
        max_length: tokens of the longest sequence; 0 = the model's own limit.
        max_prefill_tokens: tokens computed in one step.
        num_blocks: blocks of the KV pool; 0 = sized from memory.
        num_host_blocks: blocks of the host tier, for what the pool evicts.
        prefix_cache_ttl: seconds after which unused cached blocks are dropped; None = never.
        memory_ratio: share of memory, as in the runtime config; None = the backend's default.
        weight_quant_group_size: weights that share a scale; 0 = one a row, None = the backend's default.
    """

    path: str
    format: ModelFormat
    file_prefix: str = ""
    backend: str = "auto"
    native_ops: bool = False
    dtype: ComputeDtype = ComputeDtype.AUTO
    compute_unit: ComputeUnit | None = None
    device_list: tuple[int, ...] = ()
    num_threads: int = 0
    max_batch: int = 32
    max_length: int = 0
    max_prefill_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = 0
    num_host_blocks: int = 0
    kv_cache_mode: KvCacheMode = KvCacheMode.DEFAULT
    enable_prefix_cache: bool = True
    prefix_cache_ttl: float | None = None
    memory_ratio: float | None = None
    rope_scaling: RopeScaling | None = None
    weight_quant: WeightQuant = WeightQuant.NONE
    weight_quant_group_size: int | None = None
    activation_quant: ActivationQuant = ActivationQuant.NONE
    logits_processors: tuple[ProcessorFile, ...] = ()


@dataclass(frozen=True, slots=True)
class AddSequence:
    """Compute this sequence.

    Attributes:
        prompt: ids of the prompt.
        generated: ids generated before, by an earlier core; they count as generated.
        index: number of the sequence in its request, for the random numbers.
        group: those of one number, above 0, have one prompt, which is computed once; 0: it is alone.
        more: the next one of its group follows at once.
        eos_ids: any of these ends the sequence, once min_new is reached.
        max_new: tokens after which it ends with MAX_LENGTH.
        min_new: tokens before which eos_ids are masked, and stop_ids do not end it.
        stop_ids: any of these ends it with STOP_WORD; the front half finds out which, and knows other stops.
        rules: what else changes its logits; None: nothing.
        processors: change its logits after the rules, in this order.
        grammar: what its text must match, as `guided` compiles it; "": anything.
        priority: higher is served first.
        interrupt_policy: RETURN ends it with INTERRUPTED where RESUME would put it back for lack of blocks.
        prompt_logprobs: tell the log-probabilities of the prompt's tokens, with so many alternatives; None: do not.
        scored: of them, those of the tokens before this one were told by an earlier core.
        tensors: tell the vectors of each token.
    """

    key: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new: int
    generated: tuple[int, ...] = ()
    index: int = 0
    group: int = 0
    more: bool = False
    eos_ids: tuple[int, ...] = ()
    min_new: int = 0
    stop_ids: tuple[int, ...] = ()
    rules: LogitRules | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    grammar: str = ""
    priority: int = 0
    use_prefix_cache: bool = True
    cache_salt: str = ""
    interrupt_policy: InterruptPolicy = InterruptPolicy.RESUME
    prompt_logprobs: int | None = None
    scored: int = 0
    tensors: bool = False


@dataclass(frozen=True, slots=True)
class EndSequence:
    """Compute this sequence no more. An unknown key is ignored: its end may have crossed this message."""

    key: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with a Pong of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Free everything and exit."""


@dataclass(frozen=True, slots=True)
class CoreProgress:
    """How far loading has come."""

    phase: ModelPhase
    bytes_done: int = 0
    bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class CoreReady:
    """Warm-up passed. Every choice that was left to the core, and every size; as Runner has them, idle processors."""

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
class CoreStat:
    """Gauges after a step, and counters since the core started."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    host_blocks_total: int = 0
    host_blocks_used: int = 0
    prefix_cache_hit_tokens: int = 0
    prefix_cache_host_hit_tokens: int = 0
    prefix_cache_miss_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0


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
    """Answer to a Ping."""

    number: int


CoreCommand = CorePlan | AddSequence | EndSequence | Ping | Shutdown
CoreMessage = CoreProgress | CoreReady | CoreFailed | StepBegun | StepOutput | Pong
