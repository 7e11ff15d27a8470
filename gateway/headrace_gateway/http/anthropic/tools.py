"""Tools of Anthropic's API, and which of them are called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.failures import invalid

_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that its caller runs. With `strict` its input satisfies its schema.

    Attributes:
        cache_control: changes nothing, and neither does eager_input_streaming: input always comes in parts.
        defer_loading: only false is supported.
        allowed_callers: only the model itself is.
    """

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], msgspec.Meta(min_length=1)] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def tools_of(tools: list[Tool] | None, choice: ToolChoice | None, form: str | None) -> Tools:
    """Return the tools of a request.

    Raises:
        Failure: a choice without tools, or whose name is missing or of no use.
    """
    given = []
    for tool in tools or []:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        known = {key: value for key, value in function.items() if value is not None}
        given.append({"type": "function", "function": known})
    chosen = choice or ToolChoice(type="auto")
    if not given and chosen.type in ("any", "tool"):
        raise invalid("tool_choice", "is set without tools")
    if (chosen.name is None) is (chosen.type == "tool"):
        raise invalid(
            "tool_choice.name", f'is {"missing" if chosen.name is None else "of no use"} with "{chosen.type}"'
        )
    names = [] if chosen.name is None else [chosen.name]
    strict = [tool.name for tool in tools or [] if tool.strict]
    return Tools(given, _MODES[chosen.type], names, not chosen.disable_parallel_tool_use, strict, form)
