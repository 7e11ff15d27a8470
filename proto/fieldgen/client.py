"""Generates the client's side of configs: typed keywords with their documentation, and the setters of a builder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import fill
from typing import Any

from fieldgen.contract import (
    PYTHON_TYPES,
    Contract,
    enum_names,
    first_clause,
    first_sentence,
    is_duration,
    is_map,
    unwrapped,
)
from fieldgen.forms import FORMS
from fieldgen.rules import Rules

_TYPED = ("Lease", "LogitsProcessor")
"""Messages with a TypedDict of their own; other messages are plain mappings."""

_ARGUMENTS = ("model_name", "model_path")
"""Fields that are separate arguments."""

_MADE = "Made by `make fields` from the wire contract."
_VALUES = '''\
"""Values of configs with a form of their own. {made}"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Required, TypedDict

Seconds = float | timedelta
"""A time span: seconds, or a timedelta."""

TokenIdLists = Sequence[Sequence[int]]
'''
_KEYWORDS = '''\
"""The keywords of {of}, typed. {made}"""

from __future__ import annotations

{imports}
'''
_IMPORTED = {
    "collections.abc": ("Mapping", "Sequence"),
    "typing": ("Any", "Literal", "TypedDict"),
    "headrace._values.field_values": ("Lease", "LogitsProcessor", "Seconds", "TokenIdLists"),
}
"""Names that hints of keywords consist of, by the module that they are imported from."""

_SETTERS = '''\
"""The setters of a builder of generation configs. Made by `make fields` from the wire contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace._values.builders import ConfigBuilder, Flag, Setter
from headrace._values.field_values import Lease, LogitsProcessor, Seconds, TokenIdLists


class GenerationSetters(ConfigBuilder):
    """A setter for each field of a generation config."""

'''


def values(contract: Contract) -> str:
    """Return the module `headrace._values.field_values`."""
    return _VALUES.format(made=_MADE) + "".join(_typed_dict(contract, name, contract.message(name)) for name in _TYPED)


def generation_keywords(contract: Contract) -> str:
    """Return the module `headrace._values.generation_fields`."""
    return _keywords(contract, "a request", "GenerationFields", "GenerationConfig")


def install_keywords(contract: Contract) -> str:
    """Return the module `headrace._values.install_fields`."""
    return _keywords(contract, "an install", "InstallFields", "RuntimeConfig")


def _keywords(contract: Contract, of: str, name: str, message: str) -> str:
    code = _typed_dict(contract, name, contract.message(message))
    imports = ""
    for module, names in _IMPORTED.items():
        used = [each for each in names if re.search(rf"\b{each}\b", _hints(code))]
        gap = "\n" if module.startswith("headrace") else ""
        imports += f"{gap}from {module} import {', '.join(used)}\n" if used else ""
    return _KEYWORDS.format(of=of, made=_MADE, imports=imports.rstrip()) + code


def _hints(code: str) -> str:
    """Return a class without its docstring."""
    head, _, rest = code.partition('"""')
    return head + rest.partition('"""')[2]


def setters(contract: Contract) -> str:
    """Return the module `headrace._values.generation_setters`."""
    lines = ""
    for field in contract.message("GenerationConfig").fields:
        doc, kind = python_words(first_clause(contract.comment(field))), _hint(field)
        made = "Flag" if kind == "bool" else f"Setter[{kind}]"
        lines += f"    {field.name} = {made}({doc!r})\n"
    return _SETTERS + lines


def _typed_dict(contract: Contract, name: str, message: Any) -> str:
    fields = [field for field in message.fields if field.name not in _ARGUMENTS]
    comment = python_words(contract.comment(message))
    first = first_sentence(comment)
    rest = wrapped(comment.removeprefix(first).strip(), 4)
    manual = "\n".join(wrapped(f"{field.name}: {python_words(_manual(contract, field))}", 12, 8) for field in fields)
    doc = "\n\n".join(part for part in (f"    {first}", rest, f"    Attributes:\n{manual}") if part)
    hints = "".join(f"    {field.name}: {_optional(name, field)}\n" for field in fields)
    return f'\n\nclass {name}(TypedDict, total=False):\n    """{doc.strip()}\n    """\n\n{hints}'


def _manual(contract: Contract, field: Any) -> str:
    """Return a field's meaning, values and default, and which values engines honour so far."""
    rules, part = Rules.of(contract, field), unwrapped(field).message_type
    sentences = [contract.comment(field)]
    if rules.range:
        sentences.append(
            f"In {rules.range}." if rules.range[0] in "[(" else f"{rules.range[0].upper()}{rules.range[1:]}."
        )
    if field.enum_type is not None:
        sentences.append(f"One of {_shown(rules, enum_names(field.enum_type))}.")
    if part is not None and part.name in FORMS and part.name not in _TYPED:
        sentences.append(f"Form: {FORMS[part.name]}.")
    if rules.default is not None:
        sentences.append(f"Default {_shown(rules, [rules.default])}.")
    elif rules.unset:
        sentences.append(f"Default: {rules.unset}.")
    if rules.honoured is not None:
        honoured = f"Only {_shown(rules, rules.honoured)} so far." if rules.honoured else "Not supported so far."
        sentences.append(honoured)
    return " ".join(sentences)


def _shown(rules: Rules, values: Iterable[str]) -> str:
    return ", ".join(f'"{text}"' if rules.field.enum_type else rules.literal(text) for text in values)


def python_words(comment: str) -> str:
    """Reword a comment of the contract for Python: methods where it names calls."""
    comment = re.sub(r"\b(true|false)\b", lambda found: found[0].capitalize(), comment)
    calls = re.compile(r"\b(?:Get|List|Start|Stop)(?:Model|Request)s?\b")
    return calls.sub(lambda found: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[0]).lower(), comment)


def wrapped(text: str, indent: int, first: int | None = None) -> str:
    """Fill lines of a docstring: `indent` spaces before each, `first` before the first one if it is given."""
    begin = " " * (indent if first is None else first)
    return fill(text, 120, initial_indent=begin, subsequent_indent=" " * indent, break_long_words=False) if text else ""


def _optional(name: str, field: Any) -> str:
    if name not in _TYPED:
        return f"{_hint(field)} | None"
    return _hint(field) if field.has_presence or field.is_repeated else f"Required[{_hint(field)}]"


def _hint(field: Any) -> str:
    inner = unwrapped(field)
    if is_map(field):
        return "Mapping[int, float] | Mapping[str, float]"
    if is_duration(field):
        return "Seconds"
    if field.enum_type is not None:
        return f"Literal[{', '.join(repr(name) for name in enum_names(field.enum_type))}]"
    if inner.message_type is not None:
        kind = inner.message_type.name if inner.message_type.name in _TYPED else "Mapping[str, Any]"
        return f"Sequence[{kind}]" if inner.is_repeated else kind
    kind = PYTHON_TYPES.get(inner.cpp_type, "int")
    if not inner.is_repeated:
        return kind
    if inner is not field:
        return "TokenIdLists" if field.is_repeated else f"Sequence[{kind}]"
    return f"int | Sequence[{kind}]" if kind == "int" else f"Sequence[{kind}]"
