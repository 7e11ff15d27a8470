"""Results of a request, as plain data: status, tokens, end, and statistics of a sequence.

Times are seconds since the Unix epoch, durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace_engine.errors import HeadraceError
from headrace_engine.token_types import PromptLogprobs, TokenDetails, TopLogprobs


class GenerateStatus(StrEnum):
    """Life cycle of a sequence."""

    INIT = "INIT"
    CONTEXT_FINISHED = "CONTEXT_FINISHED"
    GENERATING = "GENERATING"
    FINISHED = "FINISHED"
    INTERRUPTED = "INTERRUPTED"
    INTERNAL_ERROR = "INTERNAL_ERROR"

    @property
    def terminal(self) -> bool:
        """True if the sequence has ended."""
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
    RESPONSE_FORMAT_LIMIT = "RESPONSE_FORMAT_LIMIT"
    ENGINE_LOST = "ENGINE_LOST"
    ERROR = "ERROR"

    @property
    def status(self) -> GenerateStatus:
        """The terminal status for this reason."""
        if self in _INTERRUPTED:
            return GenerateStatus.INTERRUPTED
        if self in (FinishReason.ENGINE_LOST, FinishReason.ERROR):
            return GenerateStatus.INTERNAL_ERROR
        return GenerateStatus.FINISHED


_INTERRUPTED = frozenset({
    FinishReason.INTERRUPTED,
    FinishReason.DRAINED,
    FinishReason.LEASE_EXPIRED,
    FinishReason.RESPONSE_FORMAT_LIMIT,
})  # fmt: skip


class StopKind(StrEnum):
    """The config field whose entry ended a sequence."""

    STOP_WORDS = "STOP_WORDS"
    STOP_WORDS_IDS = "STOP_WORDS_IDS"
    STOP_TOKEN_IDS = "STOP_TOKEN_IDS"


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop that ended a sequence: its list, its index there, and its text."""

    kind: StopKind
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Number of prompt tokens found in the prefix cache: in the device's pool, and in host memory."""

    prefix_len_gpu: int = 0
    prefix_len_cpu: int = 0

    @property
    def prefix_cache_len(self) -> int:
        """Number of prompt tokens found in either."""
        return self.prefix_len_gpu + self.prefix_len_cpu


@dataclass(frozen=True, slots=True)
class Elements:
    """Consecutive tokens of one sequence.

    Attributes:
        position: index of the first token among the generated ones.
        token_ids: the ids, including EOS and stop ids.
        text: the new text, whole characters only.
        checksum_before: CRC-32 over all ids before position.
        checksum_after: the same over all ids up to the last one here.
        details: further details of each token; None: the config requested none.
        prefix: cache use of the prompt, once known.
    """

    position: int
    token_ids: list[int]
    text: str
    checksum_before: int
    checksum_after: int
    details: TokenDetails | None = None
    prefix: PrefixReuse | None = None

    @property
    def token_logprobs(self) -> list[float] | None:
        """Log-probability of each token, if the config requested it."""
        return None if self.details is None else self.details.token_logprobs

    @property
    def top_logprobs(self) -> TopLogprobs | None:
        """The most likely ids for each, if the config requested any."""
        return None if self.details is None else self.details.top_logprobs


@dataclass(frozen=True, slots=True)
class RequestStat:
    """Times and counts of one sequence. A field is None until its event has happened."""

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
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The last entry of a sequence's log.

    Attributes:
        position: the number of tokens in the sequence.
        text: text held back until now; belongs to no id.
        checksum: CRC-32 over all ids of the sequence.
        error: the failure, if the reason is ERROR.
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
class ReadResult:
    """One read at a position: elements, and the end once everything before it was read.

    Attributes:
        prompt: a piece of the prompt logprobs; alone, and before all elements.
    """

    status: GenerateStatus
    elements: Elements | None = None
    end: EndRecord | None = None
    prompt: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class SequenceView:
    """The current state of a sequence, independent of its readers."""

    index: int
    status: GenerateStatus
    generated_length: int
    checksum: int
    stat: RequestStat
    end: EndRecord | None = None
    prefix: PrefixReuse | None = None
    first_position: int = 0
