"""The tables of fields, the wire contract, the client's manual and the page of fields say the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from headrace.fields import GenerationFields, InstallFields
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.field_checks import Field
from headrace_engine.engine.config.field_page import default_of, kind_of, page, range_of
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.engine.config.runtime_fields import RUNTIME
from headrace_engine.generation_config import GenerationConfig
from headrace_proto.v1 import generation_pb2, runtime_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto/headrace/v1"


def kinds(config: type) -> dict[str, str]:
    return {name: kind_of(hint) for name, hint in get_type_hints(config).items()}


GENERATION_KINDS, RUNTIME_KINDS = kinds(GenerationConfig), kinds(RuntimeConfig)
FIELDS = [
    *((field, GENERATION_KINDS[name], "generation") for name, field in GENERATION.items()),
    *((field, RUNTIME_KINDS[name], "runtime") for name, field in RUNTIME.items()),
]
each_field = pytest.mark.parametrize(
    ("field", "kind", "of"), FIELDS, ids=[f"{of}-{field.name}" for field, _, of in FIELDS]
)
GRAMMAR = r"((?:  //[^\n]*\n)+)  (?:optional |repeated )?[\w.<>, ]+ (\w+) = \d+;"


def comments(file: str, message: str) -> dict[str, str]:
    """The comment above each field of a message, in one line."""
    body = re.search(rf"^message {message} {{\n(.*?)^}}", (PROTO / file).read_text(), re.MULTILINE | re.DOTALL)
    assert body
    found = re.findall(GRAMMAR, body[1])
    return {name: " ".join(line.strip().removeprefix("// ") for line in text.splitlines()) for text, name in found}


def manual(fields: type) -> dict[str, str]:
    """What the client's manual says of each field, in one line."""
    attributes = (inspect.getdoc(fields) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w+: )", attributes, flags=re.MULTILINE)[1:]
    pairs = (entry.split(": ", 1) for entry in entries)
    return {name: " ".join(text.split()) for name, text in pairs}


WIRE = {
    "generation": comments("generation.proto", "GenerationConfig"),
    "runtime": comments("runtime.proto", "RuntimeConfig"),
}
MANUAL = {"generation": manual(GenerationFields), "runtime": manual(InstallFields)}


def spellings(field: Field, kind: str) -> Iterator[str]:
    """How the range of a field may be told."""
    told = range_of(field, kind)
    yield told
    if told == "above 0":
        yield from ("Above 0", "Positive", "positive")
    if told.startswith("at least "):
        yield told.capitalize()
        yield from (f"{told.removeprefix('at least ')} = ", f"{told.removeprefix('at least ')} to ")


def says_range(text: str, field: Field, kind: str) -> bool:
    unsigned = kind == "whole number" and field.low == 0 and range_of(field, kind) == "at least 0"
    listed = field.most is not None  # The limit of all lists is told once, above the message.
    return unsigned or listed or any(spelling in text for spelling in spellings(field, kind))


def says_default(text: str, field: Field) -> bool:
    default = default_of(field)
    values = {default, default.capitalize(), default.removesuffix(".0"), f'"{default}"', *_other_units(field)}
    plain = re.sub(r"0 = [\w ]+, which is the default", "Default 0", text)
    plain = re.sub(r'("\w+"|\d+) \(default\)', r"Default \1", plain)
    return not default or any(re.search(rf"[Dd]efault:? {re.escape(value)}(?![\w.]*\w)", plain) for value in values)


def _other_units(field: Field) -> tuple[str, ...]:
    return {"max_lease": ("1 h", "3600"), "max_result_bytes": ("256 MiB",)}.get(field.name, ())


def test_the_page_is_that_of_the_tables() -> None:
    """Make it anew with `python -m headrace_engine.engine.config.field_page > docs/fields.md`."""
    assert (ROOT / "docs/fields.md").read_text() == page()


@each_field
def test_every_field_says_what_it_does(field: Field, kind: str, of: str) -> None:
    assert field.text
    assert not field.text.endswith(".")
    assert "|" not in field.text


@each_field
def test_the_wire_contract_tells_range_and_default(field: Field, kind: str, of: str) -> None:
    text = WIRE[of][field.name]
    assert says_range(text, field, kind), f"{range_of(field, kind)} is not in: {text}"
    assert says_default(text, field), f"default {default_of(field)} is not in: {text}"


@each_field
def test_the_client_s_manual_tells_range_and_default(field: Field, kind: str, of: str) -> None:
    if field.name in ("model_name", "model_path"):
        return  # Arguments of their own.
    text = MANUAL[of][field.name]
    assert says_range(text, field, kind), f"{range_of(field, kind)} is not in: {text}"
    assert says_default(text, field), f"default {default_of(field)} is not in: {text}"


def test_the_checks_above_can_fail() -> None:
    field = Field("x", 0, 1, above_low=True, default=0.5)
    assert says_range("In (0, 1].", field, "number")
    assert not says_range("In [0, 1].", field, "number")
    assert says_default("Default 0.5; in (0, 1].", field)
    assert not says_default("Default 0.55.", field)
    assert not says_default("Default 1.", field)
    assert not says_range("1 to 65", Field("x", 1, 64), "whole number")
    assert not says_default("Default 10.", Field("x", default=1))


@pytest.mark.parametrize("name", GENERATION)
def test_the_wire_s_types_are_those_of_the_table(name: str) -> None:
    wire = generation_pb2.GenerationConfig.DESCRIPTOR.fields_by_name[name]
    _check_type(wire, GENERATION[name], GENERATION_KINDS[name])


@pytest.mark.parametrize("name", RUNTIME)
def test_the_wire_s_types_are_those_of_the_table_of_installs(name: str) -> None:
    _check_type(runtime_pb2.RuntimeConfig.DESCRIPTOR.fields_by_name[name], RUNTIME[name], RUNTIME_KINDS[name])


WIDTHS = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
}


def _check_type(wire: Any, field: Field, kind: str) -> None:
    if kind == "flag":
        assert wire.cpp_type == FieldDescriptor.CPPTYPE_BOOL
    elif kind == "text":
        assert wire.cpp_type == FieldDescriptor.CPPTYPE_STRING
    elif kind == "number":
        assert wire.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE or wire.message_type.name == "Duration"
    elif kind == "whole number":
        low, high = WIDTHS[wire.cpp_type]
        assert low <= (field.low or low)
        assert (field.high or high) <= high
    elif kind.startswith("list of "):
        assert wire.is_repeated or wire.message_type.fields[0].is_repeated
    elif wire.enum_type is not None:
        prefix = wire.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        assert [value.name.removeprefix(prefix) for value in wire.enum_type.values[1:]] == kind.split(", ")
    else:
        assert wire.message_type is not None


PYTHON = {
    "flag": {bool}, "text": {str}, "whole number": {int}, "number": {float},
}  # fmt: skip


@pytest.mark.parametrize(("fields", "known"), [(GenerationFields, GENERATION_KINDS), (InstallFields, RUNTIME_KINDS)])
def test_the_client_s_types_are_those_of_the_table(fields: type, known: Mapping[str, str]) -> None:
    for name, hint in get_type_hints(fields).items():
        members = {get_origin(member) or member for member in get_args(hint)} - {NoneType}
        if known[name] in PYTHON:
            assert PYTHON[known[name]] <= members, name
        elif known[name].startswith("list of "):
            assert any(issubclass(member, list | tuple) or "Sequence" in str(member) for member in members), name
