"""Generates the Markdown page of the whole contract, from its comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from fieldgen.contract import Contract, is_map

_HEAD = """\
# The gRPC contract

Made by `make fields` from the files of `proto/headrace/v1` (package `headrace.v1`). Engines and gateways serve the same
services, and those of health and reflection. The [fields](../fields.md) of configs, with their ranges and defaults, and
[grpcurl](../grpcurl.md) have pages of their own.
"""

_PACKAGE = "headrace.v1."

_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
}


def page(contract: Contract) -> str:
    """Return the page."""
    files = contract.files
    services = [service for file in files for service in file.services_by_name.values()]
    messages = [each for file in files for one in file.message_types_by_name.values() for each in _with_inner(one)]
    enums = [enum for file in files for enum in file.enum_types_by_name.values()]
    parts = [
        *(line for service in sorted(services, key=_name) for line in _service(contract, service)),
        "## Messages",
        *(line for message in sorted(messages, key=_name) for line in _message(contract, message)),
        "## Enums",
        *(line for enum in sorted(enums, key=_name) for line in _enum(contract, enum)),
    ]
    return _HEAD + "\n" + "\n\n".join(parts) + "\n"


def _with_inner(message: Any) -> Iterator[Any]:
    """Yield a message and those within it, without the entries of maps."""
    yield message
    for inner in message.nested_types:
        if not inner.GetOptions().map_entry:
            yield from _with_inner(inner)


def _name(described: Any) -> str:
    return str(described.full_name.removeprefix(_PACKAGE))


def _service(contract: Contract, service: Any) -> Iterator[str]:
    yield f"## {service.name}"
    yield contract.comment(service)
    for method in service.methods:
        yield f"### {service.name}.{method.name}"
        request = ("stream of " if method.client_streaming else "") + _link(method.input_type)
        answer = ("stream of " if method.server_streaming else "") + _link(method.output_type)
        yield f"{request} → {answer}"
        yield contract.comment(method)


def _message(contract: Contract, message: Any) -> Iterator[str]:
    yield f"### {_name(message)}"
    yield contract.comment(message)
    if message.fields:
        rows = [
            f"| {field.number} | `{field.name}` | {_kind(field)} | {_cell(contract.comment(field))} |"
            for field in message.fields
        ]
        yield "\n".join(["| | field | type | |", "|---|---|---|---|", *rows])


def _enum(contract: Contract, enum: Any) -> Iterator[str]:
    yield f"### {_name(enum)}"
    yield contract.comment(enum)
    rows = [f"| {value.number} | `{value.name}` | {_cell(contract.value_comment(value))} |" for value in enum.values]
    yield "\n".join(["| | value | |", "|---|---|---|", *rows])


def _kind(field: Any) -> str:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map of {_one(key)} to {_one(value)}"
    oneof = field.containing_oneof
    if field.is_repeated:
        return f"repeated {_one(field)}"
    if oneof is None:
        return _one(field)
    return f"optional {_one(field)}" if len(oneof.fields) == 1 else f"{_one(field)}, one of {oneof.name}"


def _one(field: Any) -> str:
    kind = field.enum_type or field.message_type
    return _SCALARS[field.type] if kind is None else _link(kind)


def _link(kind: Any) -> str:
    name = _name(kind)
    return f"`{name}`" if name == kind.full_name else f"[{name}](#{name.lower().replace('.', '')})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
