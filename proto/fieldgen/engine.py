"""Generates the engine's side of configs: dataclasses, and the table of fields that they are checked against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fieldgen.contract import PYTHON_TYPES, Contract, enum_names, first_sentence, is_duration, is_map, unwrapped
from fieldgen.rules import Rules

BY_HAND = ("ResponseFormat", "MediaItem")
"""Messages with a different type in the engine."""

_RUNTIME = '''\
"""How a model is installed. Made by `make fields` from `headrace/v1/runtime.proto`: ranges and defaults stand there.

A field that is None (or an empty list) was not set. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
'''
_GENERATION = '''\
"""How a request generates. Made by `make fields` from `headrace/v1/generation.proto`: ranges and defaults stand there.

A field that is None (or an empty list or mapping) was not set. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.config import Lease
from headrace_engine.request_parts import MediaItem, ResponseFormat
'''
_TABLE = '''\
"""The fields of configs, with their ranges and defaults. Made by `make fields` from the wire contract."""

from headrace_engine.config import {enums}
from headrace_engine.engine.config.field_checks import Field, table
from headrace_engine.generation_config import BeamStopping, InterruptPolicy
'''


def runtime_config(contract: Contract) -> str:
    """Return the module `headrace_engine.config`."""
    return _RUNTIME + _classes(contract, contract.parts(contract.message("RuntimeConfig")), set())


def generation_config(contract: Contract) -> str:
    """Return the module `headrace_engine.generation_config`."""
    parts = contract.parts(contract.message("GenerationConfig"), BY_HAND)
    return _GENERATION + _classes(contract, parts, {*BY_HAND, "Lease"})


def table(contract: Contract) -> str:
    """Return the module `headrace_engine.engine.config.fields`."""
    generation, runtime = (contract.message(name) for name in ("GenerationConfig", "RuntimeConfig"))
    rules = [Rules.of(contract, field) for field in runtime.fields]
    enums = sorted({r.field.enum_type.name for r in rules if r.field.enum_type and (r.default or r.honoured)})
    return _TABLE.format(enums=", ".join(enums)) + "".join(
        f"\n{name} = table(\n{''.join(_field(Rules.of(contract, field)) for field in message.fields)})\n"
        for name, message in (("GENERATION", generation), ("RUNTIME", runtime))
    )


def _classes(contract: Contract, parts: Any, written: set[str]) -> str:
    code = ""
    for part in parts:
        if part.name not in written:
            written.add(part.name)
            doc = f'    """{first_sentence(contract.comment(part))}"""\n\n'
            code += f"\n\n{_enum(part, doc) if hasattr(part, 'values') else _dataclass(part, doc)}"
    return code


def _enum(enum: Any, doc: str) -> str:
    return f"class {enum.name}(StrEnum):\n{doc}" + "".join(f'    {name} = "{name}"\n' for name in enum_names(enum))


def _dataclass(message: Any, doc: str) -> str:
    fields = "".join(f"    {field.name}: {_hint(field)}\n" for field in message.fields)
    return f"@dataclass(frozen=True, slots=True)\nclass {message.name}:\n{doc}{fields}"


def _hint(field: Any) -> str:
    """Return the type and default of an attribute."""
    if is_map(field):
        entry = field.message_type.fields_by_name
        return f"Mapping[{_kind(entry['key'])}, {_kind(entry['value'])}] = field(default_factory=dict)"
    kind = _kind(unwrapped(field))
    for each in {field, unwrapped(field)}:
        kind = f"tuple[{kind}, ...]" if each.is_repeated else kind
    if kind.startswith("tuple"):
        return f"{kind} = ()"
    return f"{kind} | None = None" if field.has_presence or field.enum_type else f'{kind} = ""'


def _kind(field: Any) -> str:
    if is_duration(field):
        return "float"
    named = field.message_type or field.enum_type
    return named.name if named is not None else PYTHON_TYPES.get(field.cpp_type, "int")


def _field(rules: Rules) -> str:
    def written(text: str) -> str:
        enum = rules.field.enum_type
        return f"{enum.name}.{text}" if enum is not None else rules.literal(text)

    options = {
        "low": rules.low,
        "high": rules.high,
        "above_low": rules.above_low or None,
        "default": None if rules.default is None else written(rules.default),
        "honoured": None if rules.honoured is None else _tuple(map(written, rules.honoured)),
        "longest": rules.longest or None,
        "most": rules.most or None,
    }
    given = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
    return f'    Field("{rules.field.name}"{given}),\n'


def _tuple(values: Iterable[str]) -> str:
    listed = list(values)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"
