"""Which machine reads a model's calls: by name, or by what its template shows of tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from headrace_gateway.http.tools.machines import Hermes, Machine, WholeText

ToolParser = Literal["hermes", "llama3_json", "mistral"]
"""Names of the machines."""

MACHINES: dict[ToolParser, Callable[[], Machine]] = {
    "hermes": Hermes,
    "llama3_json": lambda: WholeText(""),
    "mistral": lambda: WholeText("[TOOL_CALLS]"),
}

_SIGNS: dict[str, ToolParser] = {
    "<tool_call>": "hermes",
    "[AVAILABLE_TOOLS]": "mistral",
    'Respond in the format {"name": function name': "llama3_json",
}
"""What the prompts of templates with tools contain."""


def parser_of(rendered: str) -> ToolParser | None:
    """Return the machine for a prompt as the template rendered it, tools included; None: none is known for it."""
    return next((parser for sign, parser in _SIGNS.items() if sign in rendered), None)
