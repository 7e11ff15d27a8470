"""What calls answer, as plain data.

Times of day are datetimes in UTC; in statistics they are milliseconds since the Unix epoch, and spans of time are
milliseconds too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from headrace._values.tensor import Tensor
from headrace.errors import HeadraceError


class GenerateStatus(StrEnum):
    """Where a sequence is. The last three are terminal."""

    Init = "Init"
    """Accepted; waiting or in prefill."""
    ContextFinished = "ContextFinished"
    """Prefill is done and the first token sampled."""
    Generating = "Generating"
    """More tokens are being produced."""
    GenerateFinished = "GenerateFinished"
    """Ended for a normal reason."""
    GenerateInterrupted = "GenerateInterrupted"
    """The engine would not go on; the tokens so far are readable."""
    InternalError = "InternalError"
    """The engine failed or was lost."""

    @property
    def terminal(self) -> bool:
        """Whether the sequence has ended."""
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
    """A reason that this version of the client has no name for."""


class ModelState(StrEnum):
    """Life cycle of one model on one engine. Only RUNNING takes requests."""

    INSTALLING = "INSTALLING"
    INITIAL = "INITIAL"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RELEASED = "RELEASED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    """The engine could not be asked; see the failure."""


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Which stop ended a sequence.

    Attributes:
        kind: the list it stands in: "STOP_WORDS", "STOP_WORDS_IDS" or "STOP_TOKEN_IDS".
        index: its place in that list of the effective config, from 0.
        text: the string itself, or the ids decoded.
    """

    kind: str
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class GeneratedElements:
    """Consecutive tokens of one sequence: all that were unread. Lists by token are as long as `ids_from_generate`.

    Attributes:
        ids_from_generate: the ids, with EOS and stop ids.
        text: the new text alone; whole characters. May be there without ids: text held back until the end.
        token_logprobs_list: [token] log-probability; empty unless the request asked for logprobs.
        log_probs_list: [token][top] (id, log-probability), most likely first; empty unless the request asked.
        tensors_from_model_inference: [token] {name: tensor}; empty unless the request asked. "inputs_embedding" is the
            embedding of the id before the token, "hidden_states" the last hidden state that the token was drawn from,
            after the final norm (the last entry of transformers' `hidden_states`); both float32 [hidden size], which
            `numpy.asarray` takes without a copy.
        prefix_cache_len: tokens of the prompt that came from the prefix cache.
        prefix_len_gpu: of these, from the device's pool.
        prefix_len_cpu: of these, from host memory.
        position: place of the first token in the sequence; generated tokens only, from 0.
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
class PromptLogprobs:
    """Log-probabilities of a piece of the prompt.

    Attributes:
        position: place of the first token in the prompt; the prompt's token 0 has none, so at least 1.
        ids: the tokens' ids.
        token_logprobs_list: [token] log-probability.
        log_probs_list: [token][top] (id, log-probability), most likely first.
    """

    position: int
    ids: list[int]
    token_logprobs_list: list[float]
    log_probs_list: list[list[tuple[int, float]]]


class RequestStat(TypedDict):
    """Statistics of one sequence. None until what it tells has happened.

    Attributes:
        arrival_time: StartRequest arrived; ms since the epoch, as are the next four.
        scheduled_time: the first token of the prompt was put into a step.
        first_token_time: the first token was in the log.
        last_token_time: the newest token was in the log.
        finished_time: the sequence ended.
        time_in_queue: ms from arrival_time to scheduled_time.
        time_to_first_token: ms from arrival_time to first_token_time.
        context_token_length: tokens of the prompt.
        generated_token_length: tokens generated.
        context_cached_length: tokens of the prompt taken from the prefix cache.
        context_tps: prompt tokens computed a second.
        generate_tps: tokens generated a second.
        inter_token_p50: median ms between two tokens.
        inter_token_p99: ms between two tokens that 99 of 100 stay below.
        preemptions: times the request was put back for lack of memory.
        handovers: engines it was handed over to.
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


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """A sequence as it stands, whatever any reader has read.

    Attributes:
        index: its number in the request.
        status: its own status.
        generated_length: tokens produced.
        first_position: place of the first token that can be read; above 0 after a hand-over.
        finish_reason: why it ended; None while it runs.
        stop_match: with STOP_WORD: which.
        error: with InternalError: what went wrong.
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


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """Something accepted that looks like a mistake: path of the field, and one sentence."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request that was accepted.

    Attributes:
        handle: key of all later calls; opaque.
        request_id: chosen by the client.
        model_name: the model.
        effective_config: every generation field that has a value, by name; empty in lists of requests.
        seed: the seed in use.
        prompt_token_count: tokens of the prompt.
        prompt_hash: SHA-256 over the prompt's ids, in hexadecimal.
        warnings: what looks like a mistake.
        waiting_ahead: requests that were to be served before it when it was accepted.
        handover: 0 = the first start.
        joined: this start found the request already started.
    """

    handle: str
    request_id: str
    model_name: str
    effective_config: Mapping[str, Any]
    seed: int
    prompt_token_count: int
    prompt_hash: str
    warnings: tuple[ConfigWarning, ...]
    waiting_ahead: int
    handover: int
    joined: bool


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request as it stands.

    Attributes:
        request: what its start answered.
        sequences: its sequences, by index.
        attached: readers attached to it.
        lease_expires: when it is given up if nobody comes; None: somebody is there, or never.
        elements: the tokens asked for with `from_position`; None: none asked for, or none there.
        prompt_logprobs: those asked for with `prompt_logprobs_from`; None: none asked for, or none there.
    """

    request: AcceptedRequest
    sequences: tuple[SequenceInfo, ...]
    attached: int
    lease_expires: datetime | None
    elements: GeneratedElements | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def handle(self) -> str:
        """Key of all later calls."""
        return self.request.handle

    @property
    def status(self) -> GenerateStatus:
        """Status of sequence 0; Init while no sequence can be seen."""
        return self.sequences[0].status if self.sequences else GenerateStatus.Init
