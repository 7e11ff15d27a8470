"""Makes of an answer's parts the items of a response, and the events that report them.

Events are numbered by what the model wrote, so that any reader may go on after any of them, through any gateway: one
that opens or closes something counts one, and one with a part of a text counts its characters. So numbers have gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace_proto.pure.answers.pieces import Thought

from headrace_gateway.http.answers.parting import CallPart, Part
from headrace_gateway.http.openai.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemEvent,
    PartEvent,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from headrace_gateway.http.openai.responses.items import (
    FunctionCall,
    Item,
    ItemStatus,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
)

OPENED = 1
"""Number of the last event before the first item."""


class Outline:
    """The items of one response.

    Args:
        request_id: of its request.

    Attributes:
        items: the items so far.
        number: number of the last event.
    """

    def __init__(self, request_id: str) -> None:
        self._id = request_id
        self._call = -1  # Number of the call in progress.
        self._texts: list[str] = []  # Of the item in progress.
        self.items: list[Item] = []
        self.number = OPENED

    def feed(self, parts: Sequence[Part]) -> Iterator[Event]:
        """Take more parts; yield their events."""
        for part in parts:
            if not self._goes_on(part):
                yield from self._close("completed")
                yield from self._open(part)
            if text := _text(part):
                self._texts.append(text)
                self.number += len(text)
                yield self._delta(text)

    def end(self, *, complete: bool) -> Iterator[Event]:
        """Close the last item; yield its events. An answer without any is an empty message."""
        if not self.items:
            yield from self._open("")
        yield from self._close("completed" if complete else "incomplete")

    def _goes_on(self, part: Part) -> bool:
        item = self.items[-1] if self.items else None
        if isinstance(part, CallPart):
            return isinstance(item, FunctionCall) and part.index == self._call
        return isinstance(item, Reasoning if isinstance(part, Thought) else OutputMessage)

    def _open(self, part: Part) -> Iterator[Event]:
        index = len(self.items)
        self._texts = []
        if isinstance(part, CallPart):
            self._call = part.index
            name = f"fc_{self._id}_{index}"
            self.items.append(FunctionCall(name, part.id or "", part.name or "", "", "in_progress"))
        elif isinstance(part, Thought):
            self.items.append(Reasoning(f"rs_{self._id}_{index}", [], "in_progress"))
        else:
            self.items.append(OutputMessage(f"msg_{self._id}_{index}", [], "in_progress"))
        yield ItemEvent("response.output_item.added", self._next(), self.items[-1], index)
        if not isinstance(part, CallPart):
            begun = ReasoningText("") if isinstance(part, Thought) else OutputText("")
            yield PartEvent("response.content_part.added", self._next(), self.items[-1].id, begun, index)

    def _delta(self, text: str) -> Event:
        item, index = self.items[-1], len(self.items) - 1
        if isinstance(item, FunctionCall):
            return ArgumentsDelta(self.number, item.id, text, index)
        if isinstance(item, Reasoning):
            return ReasoningDelta(self.number, item.id, text, index)
        return TextDelta(self.number, item.id, text, index)

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        if not self.items:
            return
        item, index, text = self.items[-1], len(self.items) - 1, "".join(self._texts)
        item.status = status
        if isinstance(item, FunctionCall):
            item.arguments = text
            yield ArgumentsDone(self._next(), item.id, item.name, text, index)
        elif isinstance(item, Reasoning):
            item.content = [ReasoningText(text)]
            yield ReasoningDone(self._next(), item.id, text, index)
            yield PartEvent("response.content_part.done", self._next(), item.id, item.content[0], index)
        else:
            item.content = [OutputText(text)]
            yield TextDone(self._next(), item.id, text, index)
            yield PartEvent("response.content_part.done", self._next(), item.id, item.content[0], index)
        yield ItemEvent("response.output_item.done", self._next(), item, index)

    def _next(self) -> int:
        self.number += 1
        return self.number


def _text(part: Part) -> str:
    if isinstance(part, CallPart):
        return part.arguments
    return part.text if isinstance(part, Thought) else part
