"""Events of a response, numbered by position: so that any reader may go on after any of them.

The first four open the response; a part of the text has the number of tokens up to its end, plus three. What was held
back to the end, and the four events that close the response, follow. Numbers have gaps where a part has several tokens.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.openai.responses.answer import OutputMessage, OutputText, Response

_OPENING = 3
"""Number of the last event before the text."""


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
    """The message begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    item: OutputMessage
    output_index: int = 0


class PartEvent(msgspec.Struct):
    """Its text begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    part: OutputText
    output_index: int = 0
    content_index: int = 0


class TextDelta(msgspec.Struct):
    """New text."""

    sequence_number: int
    item_id: str
    delta: str
    output_index: int = 0
    content_index: int = 0
    logprobs: list[Any] = []
    type: Literal["response.output_text.delta"] = "response.output_text.delta"


class TextDone(msgspec.Struct):
    """The whole text."""

    sequence_number: int
    item_id: str
    text: str
    output_index: int = 0
    content_index: int = 0
    logprobs: list[Any] = []
    type: Literal["response.output_text.done"] = "response.output_text.done"


class Events:
    """Sends the events of a response after one that its reader knows.

    Args:
        exchange: where to.
        response: the response as it began.
        after: number of the last event that the reader knows; -1: none.
    """

    def __init__(self, exchange: Exchange, response: Response, after: int = -1) -> None:
        self._exchange, self._response, self._after = exchange, response, after

    @property
    def first_token(self) -> int:
        """Position of the first token that the reader does not know."""
        return max(0, self._after - _OPENING)

    async def begin(self) -> None:
        """Send what opens the response."""
        message = OutputMessage(self._response.item_id, [], "in_progress")
        await self._send(Whole("response.created", 0, self._response))
        await self._send(Whole("response.in_progress", 1, self._response))
        await self._send(ItemEvent("response.output_item.added", 2, message))
        await self._send(PartEvent("response.content_part.added", 3, self._response.item_id, OutputText("")))

    async def text(self, upto: int, text: str, *, held: bool = False) -> None:
        """Send a part of the text, of the tokens up to a position; `held`: it was held back until the end."""
        if text:
            await self._send(TextDelta(_OPENING + upto + held, self._response.item_id, text))

    async def end(self, tokens: int, ended: Response) -> None:
        """Send what closes the response."""
        number = _OPENING + tokens + 2
        if ended.output:
            (message,) = ended.output
            (part,) = message.content
            await self._send(TextDone(number, message.id, part.text))
            await self._send(PartEvent("response.content_part.done", number + 1, message.id, part))
            await self._send(ItemEvent("response.output_item.done", number + 2, message))
        kind: Any = f"response.{ended.status}"
        await self._send(Whole(kind, number + 3, ended))

    async def _send(self, event: Whole | ItemEvent | PartEvent | TextDelta | TextDone) -> None:
        if event.sequence_number > self._after:
            await self._exchange.event(event, event.type)
