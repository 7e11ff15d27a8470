"""What answers with calls must be, as one text: so it travels like any other format."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from headrace_proto.pure.strict_json import BadJson, read_json

from headrace_engine.guided.refusal import refused
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind

TOOLS, FORMAT = "tools", "json_schema"
"""What warnings call schemas of tools, and that of a response format."""


@dataclass(frozen=True)
class WantedCalls:
    """The calls that the grammar of an answer allows.

    Attributes:
        calls: format of calls.
        thoughts: format of thoughts.
        opened: the prompt ends with the first mark of a thought.
        tools: the tools, each as JSON text.
        required: there must be a call, and no text but a thought.
        schema: without a call, the answer is JSON that satisfies this, and calls have no text and no thought beside
            them; None: text is free.
        parallel: there may be several.
        names: the functions that may be called; empty: all.
        strict: functions whose arguments must satisfy their parameters.
    """

    calls: str
    thoughts: str
    opened: bool
    tools: tuple[str, ...]
    required: bool = False
    parallel: bool = True
    names: tuple[str, ...] = ()
    strict: tuple[str, ...] = ()
    schema: str | None = None

    def format(self) -> ResponseFormat:
        """Return it as a response format."""
        return ResponseFormat(ResponseFormatKind.CALLS, json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def of(cls, wanted: ResponseFormat) -> WantedCalls:
        """Return what a response format says."""
        found: dict[str, Any] = json.loads(wanted.text)
        values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}
        return cls(**values)

    def functions(self) -> list[Function]:
        """Return the functions that may be called.

        Raises:
            InvalidArgument: a tool is no function, or a name is of none.
        """
        strict = set(self.strict)
        known = {one.name: one for number, tool in enumerate(self.tools) for one in [_function(number, tool, strict)]}
        for name in (*self.names, *self.strict):
            if name not in known:
                raise refused(f'names "{name[:64]}", which is none of the tools')
        return [known[name] for name in dict.fromkeys(self.names or known)]


@dataclass(frozen=True)
class Function:
    """A function, and the schema of its arguments.

    Attributes:
        strict: they must satisfy it.
    """

    name: str
    parameters: dict[str, Any]
    strict: bool


def _function(number: int, text: str, strict: set[str]) -> Function:
    try:
        tool = read_json(text)
    except BadJson as error:
        raise refused(f"tools[{number}] {error}") from None
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise refused(f"tools[{number}] is no function with a name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise refused(f"tools[{number}].function.parameters is no schema")
    return Function(name, parameters or {}, name in strict)
