"""Events of a response: their forms, and what of them a reader is sent. `outline` numbers them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace_gateway.http.openai.responses.answer import Response
from headrace_gateway.http.openai.responses.items import Item, OutputText, ReasoningText
from headrace_gateway.http.templates import event_of


class Whole(msgspec.Struct):
    """The response as it is now."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
    ]
    sequence_number: int
    response: Response


class ItemEvent(msgspec.Struct):
    """An item begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    item: Item
    output_index: int


class PartEvent(msgspec.Struct):
    """The text of an item begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    part: OutputText | ReasoningText
    output_index: int
    content_index: int = 0


class TextDelta(msgspec.Struct):
    """New text."""

    sequence_number: int
    item_id: str
    delta: str
    output_index: int
    content_index: int = 0
    logprobs: list[Any] = []
    type: Literal["response.output_text.delta"] = "response.output_text.delta"


class TextDone(msgspec.Struct):
    """A whole text."""

    sequence_number: int
    item_id: str
    text: str
    output_index: int
    content_index: int = 0
    logprobs: list[Any] = []
    type: Literal["response.output_text.done"] = "response.output_text.done"


class ReasoningDelta(msgspec.Struct):
    """What is new of a thought."""

    sequence_number: int
    item_id: str
    delta: str
    output_index: int
    content_index: int = 0
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"


class ReasoningDone(msgspec.Struct):
    """A whole thought."""

    sequence_number: int
    item_id: str
    text: str
    output_index: int
    content_index: int = 0
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"


class ArgumentsDelta(msgspec.Struct):
    """What is new of a call's arguments."""

    sequence_number: int
    item_id: str
    delta: str
    output_index: int
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"


class ArgumentsDone(msgspec.Struct):
    """A call's whole arguments."""

    sequence_number: int
    item_id: str
    name: str
    arguments: str
    output_index: int
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"


Delta = TextDelta | ReasoningDelta | ArgumentsDelta
Event = Whole | ItemEvent | PartEvent | Delta | TextDone | ReasoningDone | ArgumentsDone


class Known:
    """Leaves out of the events of a response what a reader knows.

    Args:
        after: number of the last event that it knows; -1: none. Of a part of a text it may know a piece.
    """

    def __init__(self, after: int = -1) -> None:
        self._after = after

    def rest(self, event: Event) -> bytes:
        """Return an event encoded, or what of it the reader does not know; nothing if it knows it."""
        new = event.sequence_number - self._after
        if new <= 0:
            return b""
        if isinstance(event, Delta):
            event.delta = event.delta[-new:]
        return event_of(event, event.type)
