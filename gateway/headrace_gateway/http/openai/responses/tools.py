"""Tools of responses, and which of them are called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.failures import invalid
from headrace_gateway.http.openai.tools import MAX_NAMES


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. With `strict`, its arguments satisfy its parameters."""

    name: str
    type: Literal["function"]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool by its name."""

    name: str
    type: Literal["function"] = "function"


class Choice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that must be called, or the only tools that may be."""

    type: Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], msgspec.Meta(max_length=MAX_NAMES)] | None = None

    def parts(self) -> tuple[str, list[str]]:
        """Return the mode, and the names. Raises Failure: a part is missing, or of no use."""
        given = [name for name in ("name", "mode", "tools") if getattr(self, name) is not None]
        needed = ["name"] if self.type == "function" else ["mode", "tools"]
        if given != needed:
            raise invalid("tool_choice", f'of type "{self.type}" needs {" and ".join(needed)}, and nothing else')
        if self.name is not None:
            return "required", [self.name]
        return self.mode or "auto", [tool.name for tool in self.tools or []]


def tools_of(
    tools: list[FunctionTool] | None,
    choice: Literal["auto", "none", "required"] | Choice | None,
    parallel: bool | None,
    form: str | None,
) -> Tools:
    """Return the tools of a request. Raises Failure: a choice without tools, or whose parts do not fit."""
    given, strict = [], []
    for tool in tools or []:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        known = {name: value for name, value in function.items() if value is not None}
        given.append({"type": "function", "function": known})
        strict += [tool.name] if tool.strict else []
    mode, names = choice.parts() if isinstance(choice, Choice) else (choice or "auto", [])
    if not given and (mode == "required" or names):
        raise invalid("tool_choice", "is set without tools")
    return Tools(given, mode, names, parallel is not False, strict, form)
