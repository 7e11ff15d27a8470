"""Requests, as sent, as accepted, and their current state, as plain data.

Times are seconds since the Unix epoch, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace_engine.chat_types import NOTHING_KNOWN, AnswerFormat, Chat, ChatAnswer
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.result_types import RequestStat, SequenceView
from headrace_engine.token_types import PromptLogprobs


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A likely mistake in an accepted config: the field's path, and one sentence."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class ResumedSequence:
    """State of one sequence as its readers have received it.

    Attributes:
        delivered_ids: all ids delivered, from position 0 on; they count as generated. A tuple once accepted.
        stat: its last known statistics.
        ended: its end was delivered: it is not run again.
    """

    index: int = 0
    delivered_ids: Sequence[int] = ()
    stat: RequestStat | None = None
    ended: bool = False


class OwnerLimit(NamedTuple):
    """A limit of an owner, over all engines of its gateway.

    Attributes:
        most: what it may have.
        elsewhere: what it has on other engines.
    """

    most: int
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """Limits of an owner that a gateway sends with a start; None: there is none.

    Attributes:
        key: name of the API key that the start came with, for messages.
        concurrent_requests: requests that have not ended.
        waiting_requests: requests of which a sequence has not been in a step yet.
        kept_bytes: bytes reserved for its requests.
    """

    key: str
    concurrent_requests: OwnerLimit | None = None
    waiting_requests: OwnerLimit | None = None
    kept_bytes: OwnerLimit | None = None


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request to start. The prompt is a text, ids, or a chat.

    Attributes:
        request_id: chosen by the client; empty: generated, and the start is not idempotent.
        handover: 0 = the first start; incremented by each hand-over from another engine.
        resume: what the earlier engine delivered; None: there was none.
        content: digest of the message without `attempt` and `resume`; equal content means an equal request.
        caller: the client that sent it.
        pooling: pool the last hidden states of the prompt; None: do not.
        limits: of its owner; None: there are none.
        trace: W3C's trace context of the call; "": it has none.
    """

    model_name: str
    prompt: str | Sequence[int] | Chat
    config: GenerationConfig = field(default_factory=GenerationConfig)
    add_special_tokens: bool | None = None
    request_id: str = ""
    handover: int = 0
    resume: tuple[ResumedSequence, ...] | None = None
    owner: str = ""
    content: bytes = b""
    caller: str = ""
    pooling: Pooling | None = None
    limits: OwnerLimits | None = None
    trace: str = ""

    @property
    def party(self) -> str:
        """The party that its share of common resources is charged to: its owner, else the caller."""
        return self.owner or self.caller


class Pooling(StrEnum):
    """How the last hidden states of a prompt become one vector."""

    LAST = "LAST"
    MEAN = "MEAN"


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of a prompt, and the number of the prompt's tokens."""

    values: Sequence[float]
    prompt_token_count: int


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request that was validated and accepted.

    Attributes:
        effective_config: None in answers that omit it.
        adapter_digest: of the content of its adapter; "": it has none.
        answer_format: how its text is parted; None: it lacks the marks for that.
    """

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
    adapter_digest: str = ""
    answer_format: AnswerFormat | None = None


@dataclass(frozen=True, slots=True)
class RequestView:
    """The current state of a request.

    Attributes:
        attached: number of readers of any of its sequences.
        lease_expires: when its lease expires unless a reader attaches; None: a reader is attached.
        prompt_logprobs: the requested prompt logprobs; None: not requested, or not known yet.
    """

    request: AcceptedRequest
    sequences: tuple[SequenceView, ...]
    attached: int = 0
    lease_expires: float | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The ids of a prompt, the text that was tokenized, warnings about it, and what is known of the answer."""

    token_ids: list[int]
    rendered_text: str
    warnings: tuple[ConfigWarning, ...] = ()
    answer: ChatAnswer = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class Detokenized:
    """The text of ids, and the bytes of each id."""

    text: str
    pieces: list[bytes]
