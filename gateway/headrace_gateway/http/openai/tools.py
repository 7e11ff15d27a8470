"""Tools of chats: as requests give them to the template, and calls as answers have them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from headrace import AsyncClient
from headrace.errors import HeadraceError

from headrace_gateway.http.failures import failure_of, invalid
from headrace_gateway.http.openai.fields import NAMES
from headrace_gateway.http.tools.calls import Call
from headrace_gateway.http.tools.choice import MACHINES, ToolParser, parser_of
from headrace_gateway.http.tools.machines import Machine, Piece, Thinking, Thought


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. Its arguments are not enforced: `strict` is refused."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool."""

    function: Function
    type: Literal["function"] = "function"


class CalledFunction(msgspec.Struct):
    """What is called, and with what."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call that the model makes."""

    index: int
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


Make = Callable[[], Machine] | None
"""Makes the machine of one sequence; None: there are no tools."""

Part = str | ToolCall | Thought
"""A text, a call or a thought."""


class Parting:
    """Parts the calls of one sequence from its text.

    Args:
        make: makes its machine; None: all is text.

    Attributes:
        count: calls so far.
    """

    def __init__(self, make: Make) -> None:
        self.count = 0
        self._machine = None if make is None else make()

    def feed(self, text: str) -> list[Part]:
        """Take more text; return what is certain now."""
        if self._machine is None:
            return [text] if text else []
        return self._numbered(self._machine.feed(text))

    def end(self) -> list[Part]:
        """Return what is left."""
        return [] if self._machine is None else self._numbered(self._machine.end())

    def _numbered(self, pieces: list[Piece]) -> list[Part]:
        found: list[Part] = []
        for piece in pieces:
            if not isinstance(piece, Call):
                found.append(piece)
                continue
            called = CalledFunction(piece.name, piece.arguments)
            found.append(ToolCall(self.count, f"call_{uuid.uuid4().hex[:24]}", called))
            self.count += 1
        return found


def as_given(tools: list[Tool] | None) -> list[dict[str, Any]]:
    """Return tools for the template, without what was not given."""
    found = []
    for tool in tools or []:
        function = {name: value for name, value in msgspec.structs.asdict(tool.function).items() if value is not None}
        found.append({"type": tool.type, "function": function})
    return found


async def machines_for(
    client: AsyncClient, model: str, prompt: Mapping[str, Any], parser: ToolParser | None, *, thinks: bool
) -> tuple[Make, ToolParser | None]:
    """Return what makes the machines of a request, and how calls are written.

    Args:
        client: asks for the prompt that the template makes.
        model: the model.
        prompt: what the template is given.
        parser: how calls are written; None: as the template shows.
        thinks: part thoughts from the text.

    Raises:
        Failure: the template shows the tools in no form that is known.
    """
    calls = prompt["tools"] is not None
    if not (calls or thinks):
        return None, None
    try:
        rendered = (await client.tokenize(model, **prompt)).rendered_text
    except HeadraceError as error:
        raise failure_of(error, NAMES) from None
    parser = (parser or parser_of(rendered)) if calls else None
    if calls and parser is None:
        text = "are shown by the model's template in no form that is known: name one in tool_parser"
        raise invalid("tools", f"{text} ({', '.join(MACHINES)})", "unsupported_value")
    make = None if parser is None else MACHINES[parser]
    if not thinks:
        return make, parser
    opened = rendered.rstrip().endswith("<think>")
    return lambda: Thinking(opened, None if make is None else make()), parser
