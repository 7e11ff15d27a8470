"""The page that lists all fields, made from their tables: `python -m headrace_engine.engine.config.field_page`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import EnumType
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.field_checks import UINT32, UINT64, Field
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.engine.config.runtime_fields import RUNTIME
from headrace_engine.generation_config import GenerationConfig

_HEAD = """\
# Fields

Made by `python -m headrace_engine.engine.config.field_page` from the tables that engines check configs against. A
field that is left out has the default named here; where a model's own `generation_config.json` sets one, that comes
first. Out of range is INVALID_ARGUMENT, and so is what engines do not do yet: `python -m pydoc headrace.fields` lists
it.
"""

_FORMS = """\
## Values with a form of their own

As the Python client takes them; on the wire they are messages with the same fields.

| value | form |
|---|---|
| response format | `{"type": "json_object"}`, `{"type": "json_schema", "json_schema": {…}}`, `{"type": "regex", \
"regex": "[0-9]+"}`, `{"type": "choice", "choices": ["yes", "no"]}`, \
`{"type": "grammar", "text": …, "syntax": "LARK"}` (or `"EBNF"`) |
| lease | `{"running": 60, "ended": 600}`, in seconds |
| logits processor | `{"name": "steer", "arguments": [6.0, 28]}` |

How a chat becomes a prompt (`tools`, `template_variables`, `add_generation_prompt`, `continue_final_message`,
`add_special_tokens`) is said by `python -m pydoc headrace.fields`, under `ChatFields`.
"""

_WIDTHS = (UINT32, UINT64, 2**31 - 1)
"""Largest values that are the wire's, and no limits of ours."""

_KINDS = {bool: "flag", int: "whole number", float: "number", str: "text"}
_OBJECTS = {
    "Lease": "lease",
    "ResponseFormat": "response format",
    "RopeScaling": "scaling",
    "MediaItem": "media",
    "Adapter": "adapter",
    "LogitsProcessor": "logits processor",
}


def page() -> str:
    """The page, in Markdown."""
    generation = _table(GENERATION, GenerationConfig)
    runtime = _table(RUNTIME, RuntimeConfig)
    return f"{_HEAD}\n## Of a request\n\n{generation}\n## Of an install\n\n{runtime}\n{_FORMS}"


def kind_of(hint: Any) -> str:
    """What values of a type are called, such as "list of whole numbers"."""
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind = next(member for member in members if member is not NoneType)
    if get_origin(kind) is tuple:
        inner = kind_of(get_args(kind)[0])
        return f"list of {inner.replace('list', 'lists') if inner.startswith('list') else _plural(inner)}"
    if get_origin(kind) is not None:
        return "numbers by id"
    if isinstance(kind, EnumType):
        return ", ".join(kind.__members__)
    return _KINDS.get(kind) or _OBJECTS[kind.__name__]


def range_of(field: Field, kind: str) -> str:
    """Its range as contracts write it, such as "(0, 1]" or "1 to 64"; "" where its kind says it all."""
    if field.longest is not None:
        return f"at most {field.longest} bytes"
    if field.most is not None:
        return f"at most {field.most} entries"
    low, high = field.low, None if field.high in _WIDTHS else field.high
    if low is None or low <= -(2**31):
        return ""
    if high is None:
        return f"above {low:g}" if field.above_low else f"at least {low:g}"
    if kind == _KINDS[int]:
        return f"{low} to {high}"
    return f"{'(' if field.above_low else '['}{low:g}, {high:g}]"


def default_of(field: Field) -> str:
    """Its default as contracts write it; "" where it has none of its own."""
    if field.default is None:
        return ""
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return str(field.default) or '""'


def _table(fields: Mapping[str, Field], config: type) -> str:
    hints = get_type_hints(config)
    rows = ["| field | type | default | range | what it does |", "|---|---|---|---|---|"]
    for name, field in fields.items():
        kind = kind_of(hints[name])
        cells = (f"`{name}`", kind, default_of(field), range_of(field, kind), field.text)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _plural(kind: str) -> str:
    return "media" if kind == "media" else f"{kind}s"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
