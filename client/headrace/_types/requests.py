"""Accepted requests, and their current state. Times are datetimes in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace._types.results import GeneratedElements, GenerateStatus, PromptLogprobs, SequenceInfo
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A warning about a value that was accepted but is probably a mistake.

    Attributes:
        field: path of the field.
        message: one sentence.
    """

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How an answer's text is parted into calls of tools, thoughts and the rest: see `headrace.answers`.

    Attributes:
        calls: format of calls; "": there are no tools, or the model's template shows them in no form that is known.
        thoughts: format of thoughts.
        thought_open: True if the prompt ends with the mark of a thought, so that the text begins within it. False
            beside a response format, which describes the whole text; structural tags may go on with the thought.
        or_json: True if the text is calls alone, or else JSON alone: a response format of JSON beside tools.
    """

    calls: str
    thoughts: str
    thought_open: bool
    or_json: bool = False


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An accepted request.

    Attributes:
        handle: opaque string that identifies the request in all later calls.
        request_id: id chosen by the client.
        model_name: name of the model.
        effective_config: all generation fields that have a value, by name; empty in lists of requests.
        seed: seed in use.
        prompt_token_count: number of prompt tokens.
        prompt_hash: SHA-256 of the prompt's ids, in hexadecimal.
        warnings: values that are probably mistakes.
        waiting_ahead: number of requests ahead of it in the queue when it was accepted.
        handover: number of hand-overs before this start; 0 = the first start.
        joined: True if the request had been started before, with the same request_id.
        adapter_digest: digest of the content of its LoRA adapter; "": it has none.
        answer_format: how its text is parted; None: the text lacks the marks for that (`keep_marks`).
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
    adapter_digest: str = ""
    answer_format: AnswerFormat | None = None


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Current state of a request.

    Attributes:
        request: the accepted request.
        sequences: its sequences, by index.
        attached: number of readers attached to it.
        lease_expires: time at which its lease expires unless a reader attaches; None: one is attached, or never.
        elements: tokens requested with `from_position`; None: not requested, or none available.
        prompt_logprobs: prompt logprobs requested with `prompt_logprobs_from`; None: not requested, or none available.
    """

    request: AcceptedRequest
    sequences: tuple[SequenceInfo, ...]
    attached: int
    lease_expires: datetime | None
    elements: GeneratedElements | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def handle(self) -> str:
        """Handle of the request."""
        return self.request.handle

    @property
    def status(self) -> GenerateStatus:
        """Status of sequence 0; Init while there is none."""
        return self.sequences[0].status if self.sequences else GenerateStatus.Init


class RequestList(list[RequestInfo]):
    """Requests, newest first.

    Attributes:
        missing: engines that a gateway could not reach, by name, with the reason. The list lacks their requests.
    """

    def __init__(
        self, requests: Iterable[RequestInfo] = (), missing: Mapping[str, HeadraceError] | None = None
    ) -> None:
        super().__init__(requests)
        self.missing = dict(missing or {})

    def extend_by(self, page: RequestList) -> None:
        """Append a page of the same list."""
        self += page
        self.missing |= page.missing
