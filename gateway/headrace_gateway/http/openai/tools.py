"""Tools of chats: as requests give them, and calls as answers have them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.answers.parting import CallPart
from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.failures import invalid

MAX_NAMES = 16_384
"""Functions that a choice may name."""


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. With `strict` its arguments satisfy its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool by its name."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The only tools that may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], msgspec.Meta(max_length=MAX_NAMES)]


class Choice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that must be called, or the only tools that may be."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    def parts(self) -> tuple[str, list[str]]:
        """Return the mode, and the names. Raises Failure: a part is missing, or of no use."""
        if (self.function is None) is (self.allowed_tools is None) or getattr(self, self.type) is None:
            raise invalid("tool_choice", f'of type "{self.type}" needs {self.type}, and nothing else')
        if self.allowed_tools is not None:
            return self.allowed_tools.mode, [tool.function.name for tool in self.allowed_tools.tools]
        return "required", [self.function.name] if self.function is not None else []


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

    @classmethod
    def of(cls, part: CallPart) -> ToolCall:
        """Return what is new of a call."""
        if part.name is None:
            return cls(part.index, function=CalledFunction(arguments=part.arguments))
        return cls(part.index, part.id, CalledFunction(part.name, part.arguments), "function")


def tools_of(
    tools: list[Tool] | None,
    choice: Literal["auto", "none", "required"] | Choice | None,
    parallel: bool | None,
    form: str | None,
) -> Tools:
    """Return the tools of a request. Raises Failure: a choice without tools."""
    given, strict = [], []
    for tool in tools or []:
        function = {name: value for name, value in msgspec.structs.asdict(tool.function).items() if value is not None}
        strict += [tool.function.name] if function.pop("strict", False) else []
        given.append({"type": tool.type, "function": function})
    mode, names = choice.parts() if isinstance(choice, Choice) else (choice or "auto", [])
    if not given and (mode == "required" or names):
        raise invalid("tool_choice", "is set without tools")
    return Tools(given, mode, names, parallel is not False, strict, form)
