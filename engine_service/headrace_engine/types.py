"""What the engine tells its callers: states, requests, results and statistics, as plain data.

Times are seconds since the Unix epoch, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.config import GenerationConfig, ModelFormat, RuntimeConfig
from headrace_engine.errors import HeadraceError


class ModelState(StrEnum):
    """Life cycle of one model."""

    INSTALLING = "INSTALLING"
    INITIAL = "INITIAL"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RELEASED = "RELEASED"
    FAILED = "FAILED"


class ModelPhase(StrEnum):
    """What is being done with a model just now."""

    DOWNLOADING = "DOWNLOADING"
    READING = "READING"
    CONVERTING = "CONVERTING"
    LOADING = "LOADING"
    ALLOCATING = "ALLOCATING"
    WARMING_UP = "WARMING_UP"
    DRAINING = "DRAINING"
    FREEING = "FREEING"


class GenerateStatus(StrEnum):
    """Where a sequence is."""

    INIT = "INIT"
    CONTEXT_FINISHED = "CONTEXT_FINISHED"
    GENERATING = "GENERATING"
    FINISHED = "FINISHED"
    INTERRUPTED = "INTERRUPTED"
    INTERNAL_ERROR = "INTERNAL_ERROR"

    @property
    def terminal(self) -> bool:
        """The sequence has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({GenerateStatus.FINISHED, GenerateStatus.INTERRUPTED, GenerateStatus.INTERNAL_ERROR})


class FinishReason(StrEnum):
    """Why a sequence ended."""

    EOS = "EOS"
    STOP_WORD = "STOP_WORD"
    MAX_LENGTH = "MAX_LENGTH"
    STOPPED = "STOPPED"
    DEADLINE = "DEADLINE"
    NO_TOKEN_LEFT = "NO_TOKEN_LEFT"
    INTERRUPTED = "INTERRUPTED"
    DRAINED = "DRAINED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    ENGINE_LOST = "ENGINE_LOST"
    ERROR = "ERROR"

    @property
    def status(self) -> GenerateStatus:
        """The terminal status that goes with this reason."""
        if self in (FinishReason.INTERRUPTED, FinishReason.DRAINED, FinishReason.LEASE_EXPIRED):
            return GenerateStatus.INTERRUPTED
        if self in (FinishReason.ENGINE_LOST, FinishReason.ERROR):
            return GenerateStatus.INTERNAL_ERROR
        return GenerateStatus.FINISHED


class StopKind(StrEnum):
    """The config field whose entry ended a sequence."""

    STOP_WORDS = "STOP_WORDS"
    STOP_WORDS_IDS = "STOP_WORDS_IDS"
    STOP_TOKEN_IDS = "STOP_TOKEN_IDS"


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Which stop ended a sequence: the list, its place there, its text."""

    kind: StopKind
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Prompt tokens taken from the prefix cache: from the device's pool, and from host memory."""

    prefix_len_gpu: int = 0
    prefix_len_cpu: int = 0

    @property
    def prefix_cache_len(self) -> int:
        """Prompt tokens taken from the cache in all."""
        return self.prefix_len_gpu + self.prefix_len_cpu


@dataclass(frozen=True, slots=True)
class Elements:
    """Consecutive tokens of one sequence.

    Attributes:
        position: place of the first token among the generated ones.
        token_ids: the ids, with EOS and stop ids.
        text: the new text, whole characters only.
        checksum_before: CRC-32 over all ids before position.
        checksum_after: the same over all ids up to the last one here.
        token_logprobs: log-probability of each token, where the config asked for it.
        prefix: cache use of the prompt, once known.
    """

    position: int
    token_ids: list[int]
    text: str
    checksum_before: int
    checksum_after: int
    token_logprobs: list[float] | None = None
    prefix: PrefixReuse | None = None


@dataclass(frozen=True, slots=True)
class RequestStat:
    """Times and counts of one sequence. None until what it tells has happened."""

    arrival_time: float | None = None
    scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    time_in_queue: float | None = None
    time_to_first_token: float | None = None
    context_token_length: int | None = None
    generated_token_length: int | None = None
    context_cached_length: int | None = None
    context_tps: float | None = None
    generate_tps: float | None = None
    inter_token_p50: float | None = None
    inter_token_p99: float | None = None
    preemptions: int | None = None
    handovers: int | None = None


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The last entry of a sequence's log.

    Attributes:
        position: the number of tokens in the sequence.
        text: text held back until now; belongs to no id.
        checksum: CRC-32 over all ids of the sequence.
        error: what went wrong, where the reason is ERROR.
    """

    finish_reason: FinishReason
    position: int
    text: str
    checksum: int
    stat: RequestStat
    stop: StopMatch | None = None
    error: HeadraceError | None = None

    @property
    def status(self) -> GenerateStatus:
        """The terminal status."""
        return self.finish_reason.status


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """Something accepted that looks like a mistake: the field's path, and one sentence."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as an assistant message made it; arguments as one JSON object."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. Content is a text, or a tuple of texts where it came in parts."""

    role: str
    content: str | tuple[str, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    extra_json: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be rendered by the model's chat template. Variables and tools are JSON texts."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    template_variables: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumedSequence:
    """What the readers of one sequence already have.

    Attributes:
        delivered_ids: all ids delivered, from position 0 on; they count as generated.
        stat: its statistics as last known.
        ended: its end was delivered: it is not run again.
    """

    index: int = 0
    delivered_ids: tuple[int, ...] = ()
    stat: RequestStat | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request to start. The prompt is a text, ids, or a chat.

    Attributes:
        request_id: chosen by the client; empty: drawn, and the start is not idempotent.
        handover: 0 = the first start; a hand-over from another engine counts up.
        resume: what that engine delivered; None: none did.
        content: the message without `attempt` and `resume`, encoded; equal content means an equal request.
    """

    model_name: str
    prompt: str | tuple[int, ...] | Chat
    config: GenerationConfig = field(default_factory=GenerationConfig)
    add_special_tokens: bool | None = None
    request_id: str = ""
    handover: int = 0
    resume: tuple[ResumedSequence, ...] | None = None
    owner: str = ""
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request that was validated and accepted. The config is None where answers leave it out."""

    handle: str
    request_id: str
    model_name: str
    effective_config: GenerationConfig | None
    seed: int
    prompt_token_count: int
    prompt_hash: str
    warnings: tuple[ConfigWarning, ...] = ()
    waiting_ahead: int = 0
    handover: int = 0
    joined: bool = False


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A sequence as it stands, whatever any reader has read."""

    index: int
    status: GenerateStatus
    generated_length: int
    checksum: int
    stat: RequestStat
    end: EndRecord | None = None
    prefix: PrefixReuse | None = None
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as it stands.

    Attributes:
        attached: readers of any of its sequences.
        lease_expires: when its lease runs out if nobody comes; None: somebody is there.
    """

    request: AcceptedRequest
    sequences: tuple[SequenceView, ...]
    attached: int = 0
    lease_expires: float | None = None


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a reader finds at its position: elements, and the end once nothing is unread before it."""

    status: GenerateStatus
    elements: Elements | None = None
    end: EndRecord | None = None


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """How far the verb in progress has come. bytes_total is None where it is not known."""

    phase: ModelPhase
    bytes_done: int = 0
    bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """What a runtime config became: every choice made and every size computed."""

    config: RuntimeConfig
    devices: tuple[str, ...] = ()
    architecture: str = ""
    resolved_revision: str = ""
    weight_bytes: int = 0
    workspace_bytes: int = 0
    kv_bytes: int = 0
    kv_tokens: int = 0
    host_kv_bytes: int = 0
    host_kv_tokens: int = 0
    vocab_size: int = 0
    model_max_length: int = 0
    generation_defaults: GenerationConfig = field(default_factory=GenerationConfig)
    warnings: tuple[ConfigWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class CoreLoss:
    """The core of a model that runs was lost, and the next one is not at work yet.

    Attributes:
        epoch: number of the core that was lost.
        reason: how it was lost, in words.
        time: when, in seconds since the Unix epoch.
    """

    epoch: int
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model on this engine as it stands.

    Attributes:
        core_epoch: cores that were started under its name.
        core_loss: set while its core is being replaced; its state is what it was.
    """

    model_name: str
    engine: str
    state: ModelState
    wanted_state: ModelState
    state_time: float
    failure: HeadraceError | None = None
    progress: ModelProgress | None = None
    effective: EffectiveConfig | None = None
    core_epoch: int = 0
    core_loss: CoreLoss | None = None

    @property
    def serving(self) -> bool:
        """It takes requests now."""
        return self.state is ModelState.RUNNING and self.core_loss is None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What lies at a path, without installing it."""

    format: ModelFormat
    architecture: str
    config_json: str
    generation_config: GenerationConfig
    max_length: int
    vocab_size: int
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    resolved_revision: str
    chat_template: str | None = None
    refusal: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class EngineStat:
    """What the engine does with one model now. Counters run from the start of the instance."""

    model_name: str
    state: ModelState
    engine: str
    instance_id: str
    core_epoch: int
    time: float
    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    tokens_total: int = 0
    tokens_free: int = 0
    prefix_cache_hit_tokens: int = 0
    prefix_cache_miss_tokens: int = 0
    prefix_cache_hit_rate: float | None = None
    prefix_cache_miss_rate: float | None = None
    pool_bytes_total: int = 0
    pool_bytes_used: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tps: float = 0.0
    prefilled_tps: float = 0.0
    step_time_p50: float | None = None
    step_time_p99: float | None = None
    batch_size: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers, and what it can do."""

    name: str
    instance_id: str
    api_version: str
    build: str
    features: tuple[str, ...]
    start_time: float
    devices: tuple[str, ...]
    core_epoch: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The ids of a prompt, and the text they were made from."""

    token_ids: list[int]
    rendered_text: str


@dataclass(frozen=True, slots=True)
class Detokenized:
    """The text of ids, and the bytes that each id stands for."""

    text: str
    pieces: list[bytes]
