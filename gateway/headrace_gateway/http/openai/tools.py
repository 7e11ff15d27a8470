"""Tools of chats: as requests give them to the template, and calls as answers have them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
from headrace import AsyncClient
from headrace.errors import HeadraceError
from headrace_proto.pure.answers.choice import calls_of, opens_thought
from headrace_proto.pure.answers.formats import CALLS, machine_of
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Machine, Piece, Thought

from headrace_gateway.http.failures import failure_of, invalid
from headrace_gateway.http.openai.fields import NAMES


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


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """What is called, and with what. In a stream, the name comes first and then the arguments, in parts."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A call that the model makes; in a stream, what is new of it."""

    index: int
    id: str | None = None
    function: CalledFunction | None = None
    type: Literal["function"] | None = None


@dataclass(frozen=True)
class Making:
    """Makes the machines of one request's sequences.

    Attributes:
        make: makes one.
        calls: how calls are written; "": there are no tools.
    """

    make: Callable[[], Machine]
    calls: str

    def new_id(self) -> str:
        """Return an id for a call that the model gave none."""
        return uuid.uuid4().hex[:9] if self.calls == "mistral" else f"call_{uuid.uuid4().hex[:24]}"


Part = str | ToolCall | Thought
"""A text, what is new of a call, or a thought."""


class Parting:
    """Parts the calls of one sequence from its text.

    Args:
        making: makes its machine; None: all is text.

    Attributes:
        count: calls so far.
    """

    def __init__(self, making: Making | None) -> None:
        self.count = 0
        self._making = making
        self._machine = None if making is None else making.make()

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
            if isinstance(piece, CallBegin) and self._making is not None:
                call_id = piece.id or self._making.new_id()
                found.append(ToolCall(self.count, call_id, CalledFunction(piece.name, ""), "function"))
                self.count += 1
            elif isinstance(piece, Arguments):
                found.append(ToolCall(self.count - 1, function=CalledFunction(arguments=piece.text)))
            elif not isinstance(piece, CallBegin):
                found.append(piece)
        return found


def whole_calls(parts: list[Part]) -> list[ToolCall]:
    """Return the calls of an answer, each as a whole."""
    found: list[ToolCall] = []
    for part in parts:
        if not isinstance(part, ToolCall) or part.function is None:
            continue
        if part.index == len(found):
            found.append(part)
        elif (called := found[part.index].function) is not None:
            called.arguments = (called.arguments or "") + (part.function.arguments or "")
    return found


def as_given(tools: list[Tool] | None) -> list[dict[str, Any]]:
    """Return tools for the template, without what was not given."""
    found = []
    for tool in tools or []:
        function = {name: value for name, value in msgspec.structs.asdict(tool.function).items() if value is not None}
        found.append({"type": tool.type, "function": function})
    return found


async def machines_for(
    client: AsyncClient, model: str, prompt: Mapping[str, Any], parser: str | None, *, thinks: bool
) -> Making | None:
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
        return None
    if parser is not None and parser not in CALLS:
        raise invalid("tool_parser", f'= "{parser[:32]}" is none of {", ".join(CALLS)}')
    try:
        rendered = (await client.tokenize(model, **prompt)).rendered_text
    except HeadraceError as error:
        raise failure_of(error, NAMES) from None
    parser = (parser or calls_of(rendered)) if calls else ""
    if calls and not parser:
        text = "are shown by the model's template in no form that is known: name one in tool_parser"
        raise invalid("tools", f"{text} ({', '.join(CALLS)})", "unsupported_value")
    thoughts = "think" if thinks else ""
    opened = thinks and opens_thought(thoughts, rendered)
    return Making(partial(machine_of, parser, thoughts, opened, prompt["tools"] or ()), parser)
