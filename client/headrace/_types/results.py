"""Results of a sequence: its status, tokens, end and statistics.

In statistics, times are milliseconds since the Unix epoch and durations milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict

from headrace._types.tensor import Tensor
from headrace.errors import HeadraceError


class GenerateStatus(StrEnum):
    """Status of a sequence. The last three are terminal."""

    Init = "Init"
    """Accepted; waiting or in prefill."""
    ContextFinished = "ContextFinished"
    """Prefill is done and the first token sampled."""
    Generating = "Generating"
    """More tokens are being produced."""
    GenerateFinished = "GenerateFinished"
    """Ended normally."""
    GenerateInterrupted = "GenerateInterrupted"
    """Ended early by the engine; the tokens so far can be read."""
    InternalError = "InternalError"
    """The engine failed or was lost."""

    @property
    def terminal(self) -> bool:
        """True if the sequence has ended."""
        return self in _TERMINAL


_TERMINAL = (GenerateStatus.GenerateFinished, GenerateStatus.GenerateInterrupted, GenerateStatus.InternalError)


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
    UNKNOWN = "UNKNOWN"
    """A reason that is newer than this version of the client."""


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop word or stop id that ended a sequence.

    Attributes:
        kind: field that contains it: "STOP_WORDS", "STOP_WORDS_IDS" or "STOP_TOKEN_IDS".
        index: index in that field of the effective config, from 0.
        text: the stop word, or the decoded ids.
    """

    kind: str
    index: int
    text: str


@dataclass(slots=True)  # Frozen ones take several times as long to make, and there is one for every read.
class GeneratedElements:
    """Consecutive tokens of one sequence: all that were unread. Per-token lists have the length of `ids_from_generate`.

    Attributes:
        ids_from_generate: token ids, including EOS and stop ids.
        text: text of these tokens, in whole characters. The last element may have text without ids, if the engine held
            it back until the end.
        token_logprobs_list: [token] logprob; empty unless requested with `logprobs`.
        log_probs_list: [token][top] (id, logprob), most likely first; empty unless requested with `top_logprobs`.
        tensors_from_model_inference: [token] {name: tensor}; empty unless requested. "inputs_embedding" is the
            embedding of the preceding id, "hidden_states" the last hidden state from which the token was sampled, after
            the final norm (the last entry of transformers' `hidden_states`). Both are float32 [hidden size];
            `numpy.asarray` takes them without a copy.
        prefix_cache_len: number of prompt tokens from the prefix cache.
        prefix_len_gpu: of these, tokens from the device's KV pool.
        prefix_len_cpu: of these, tokens from host memory.
        position: position of the first token among the generated tokens, from 0.
    """

    ids_from_generate: list[int] = field(default_factory=list)
    text: str = ""
    token_logprobs_list: list[float] = field(default_factory=list)
    log_probs_list: list[list[tuple[int, float]]] = field(default_factory=list)
    tensors_from_model_inference: list[dict[str, Tensor]] = field(default_factory=list)
    prefix_cache_len: int = 0
    prefix_len_gpu: int = 0
    prefix_len_cpu: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of a prompt.

    Attributes:
        values: the vector, of the model's hidden size.
        prompt_token_count: number of prompt tokens.
    """

    values: list[float]
    prompt_token_count: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Prompt logprobs of consecutive prompt tokens.

    Attributes:
        position: position of the first token in the prompt, at least 1: token 0 has no logprob.
        ids: token ids.
        token_logprobs_list: [token] logprob.
        log_probs_list: [token][top] (id, logprob), most likely first.
    """

    position: int
    ids: list[int]
    token_logprobs_list: list[float]
    log_probs_list: list[list[tuple[int, float]]]


class RequestStat(TypedDict):
    """Statistics of one sequence. A value is None until it is known.

    Attributes:
        arrival_time: time at which StartRequest arrived, in ms since the epoch, as are the next four.
        scheduled_time: time at which the first prompt token was scheduled in a step.
        first_token_time: time of the first generated token.
        last_token_time: time of the latest generated token.
        finished_time: time at which the sequence ended.
        time_in_queue: ms from arrival_time to scheduled_time.
        time_to_first_token: ms from arrival_time to first_token_time.
        context_token_length: number of prompt tokens.
        generated_token_length: number of generated tokens.
        context_cached_length: number of prompt tokens from the prefix cache.
        context_tps: prompt tokens computed per second.
        generate_tps: tokens generated per second.
        inter_token_p50: median time between two tokens, in ms.
        inter_token_p99: 99th percentile of the time between two tokens, in ms.
        preemptions: number of times the sequence was preempted for lack of memory.
        handovers: number of hand-overs to another engine.
        drafted_tokens: number of tokens drafted and computed, with speculation.
        accepted_tokens: number of those that were sampled.
    """

    arrival_time: float | None
    scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finished_time: float | None
    time_in_queue: float | None
    time_to_first_token: float | None
    context_token_length: int | None
    generated_token_length: int | None
    context_cached_length: int | None
    context_tps: float | None
    generate_tps: float | None
    inter_token_p50: float | None
    inter_token_p99: float | None
    preemptions: int | None
    handovers: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """Current state of a sequence, independent of what was read.

    Attributes:
        index: index in the request.
        status: status of the sequence.
        generated_length: number of generated tokens.
        first_position: position of the first token that can be read; above 0 after a hand-over.
        finish_reason: why it ended; None while it runs.
        stop_match: the stop that matched, with finish reason STOP_WORD.
        error: the failure, with status InternalError.
        stat: statistics so far.
    """

    index: int
    status: GenerateStatus
    generated_length: int
    first_position: int
    finish_reason: FinishReason | None
    stop_match: StopMatch | None
    error: HeadraceError | None
    stat: RequestStat
