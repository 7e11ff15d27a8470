"""Generates the Markdown page that lists all fields."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from fieldgen.contract import Contract, enum_names, is_duration, is_map, unwrapped
from fieldgen.forms import FORMS
from fieldgen.rules import Rules

_HEAD = """\
# Fields

Made by `make fields` from the wire contract (`proto/headrace/v1`), as what engines check configs against is. A field
that is left out has the default named here; where a model's own `generation_config.json` sets one, that comes first.
Out of range is INVALID_ARGUMENT, and so is what engines do not do yet, as `python -m pydoc headrace.fields` says.
"""
_TAIL = """
How a chat becomes a prompt (`tools`, `template_variables`, `add_generation_prompt`, `continue_final_message`,
`add_special_tokens`) is said by `python -m pydoc headrace.fields`, under `ChatFields`.
"""
_KINDS = {
    FieldDescriptor.CPPTYPE_BOOL: "flag",
    FieldDescriptor.CPPTYPE_DOUBLE: "number",
    FieldDescriptor.CPPTYPE_STRING: "text",
}


def page(contract: Contract) -> str:
    """Return the page."""
    generation, runtime = _table(contract, "GenerationConfig"), _table(contract, "RuntimeConfig")
    forms = "".join(f"| {_spaced(name)} | {_code(form)} |\n" for name, form in FORMS.items())
    head = (
        "## Values with a form of their own\n\nAs the Python client takes them; on the wire they are messages with the "
    )
    forms = f"{head}same fields.\n\n| value | form |\n|---|---|\n{forms}"
    return f"{_HEAD}\n## Of a request\n\n{generation}\n## Of an install\n\n{runtime}\n{forms}{_TAIL}"


def _table(contract: Contract, message: str) -> str:
    rows = ["| field | type | default | range | what it does |", "|---|---|---|---|---|"]
    for field in contract.message(message).fields:
        rules, comment = Rules.of(contract, field), contract.comment(field).replace("|", "\\|")
        default = rules.unset if rules.default is None else rules.default or '""'
        rows.append(f"| `{field.name}` | {_kind(field)} | {default} | {rules.range} | {comment} |")
    return "\n".join(rows) + "\n"


def _kind(field: Any) -> str:
    """Return the name of a field's type, such as "list of whole numbers"."""
    if is_map(field):
        return "numbers by id"
    inner = unwrapped(field)
    lists = [each for each in {field.full_name: field, inner.full_name: inner}.values() if each.is_repeated]
    kind = _one(inner)
    for depth, _ in enumerate(lists):
        kind = f"list of {kind.replace('list', 'lists') if depth else kind + 's'}"
    return kind


def _one(field: Any) -> str:
    if is_duration(field):
        return "seconds"
    if field.enum_type is not None:
        return ", ".join(enum_names(field.enum_type))
    if field.message_type is not None:
        return _spaced(field.message_type.name)
    return _KINDS.get(field.cpp_type, "whole number")


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _code(form: str) -> str:
    return re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", lambda found: f"`{found[0]}`", form)
