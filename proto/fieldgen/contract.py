"""The wire contract: descriptors, their comments, and the rules of fields."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PYTHON_TYPES = {
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_STRING: "str",
}
"""Types of values in generated code, by field type; all others are "int"."""

PROTO = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
_DURATION = "google.protobuf.Duration"
_PARTS = {"message_type": 4, "enum_type": 5, "service": 6}
"""Kinds of items with comments in a file: names and numbers of the fields of FileDescriptorProto for their paths."""

_MEMBERS = {"message_type": "field", "enum_type": "value", "service": "method"}
"""Names of the fields of their descriptors that hold members."""

_OF_MEMBERS, _OF_MESSAGES = 2, 3
"""Numbers of these fields, and of that with messages within a message."""


class Contract:
    """The files of `headrace/v1`, as parsed by buf."""

    def __init__(self) -> None:
        command = [str(TOOLS / "buf"), "build", "--as-file-descriptor-set", "-o", "-"]
        image = subprocess.run(command, cwd=PROTO, check=True, capture_output=True).stdout
        files = FileDescriptorSet.FromString(image)
        self._pool = DescriptorPool()
        self._comments: dict[str, str] = {}
        self._files = [file.name for file in files.file if file.package == "headrace.v1"]
        for file in files.file:
            self._pool.AddSerializedFile(file.SerializeToString())
            self._comments.update(_comments(file))
        self._options = GetMessageClass(self._pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
        self._rules: Any = self._pool.FindExtensionByName("headrace.v1.rules")
        self._metric: Any = self._pool.FindExtensionByName("headrace.v1.metric")

    def message(self, name: str) -> Any:
        """Return the descriptor of one of our messages."""
        return self._pool.FindMessageTypeByName(f"headrace.v1.{name}")

    @property
    def files(self) -> list[Any]:
        """The descriptors of our files."""
        return [self._pool.FindFileByName(name) for name in self._files]

    def comment(self, described: Any) -> str:
        """Return the comment above a message, enum, service or a member of one, as one line."""
        return self._comments[described.full_name]

    def value_comment(self, value: Any) -> str:
        """Return the comment above a value of an enum, as one line."""
        return self._comments[f"{value.type.full_name}.{value.name}"]

    def rules(self, field: Any) -> Any:
        """Return the FieldRules of a field; all unset if it has none."""
        return self._option(field, self._rules)

    def metric(self, field: Any) -> Any:
        """Return the Metric of a field; unset if it has none."""
        return self._option(field, self._metric)

    def _option(self, field: Any, extension: Any) -> Any:
        options: Any = self._options.FromString(field.GetOptions().SerializeToString())
        return options.Extensions[extension]

    def parts(self, message: Any, leaves: Iterable[str] = ()) -> Iterator[Any]:
        """Return a message's messages and enums, itself last, each after its parts.

        Args:
            leaves: names of messages whose parts are left out.
        """
        for field in message.fields:
            kind = unwrapped(field)
            if kind.enum_type is not None:
                yield kind.enum_type
            elif kind.message_type is not None and not is_map(field) and not is_duration(kind):
                yield from (
                    [kind.message_type] if kind.message_type.name in leaves else self.parts(kind.message_type, leaves)
                )
        yield message


def first_sentence(comment: str) -> str:
    """Return the first sentence of a comment."""
    return comment.partition(". ")[0].removesuffix(".") + "."


def first_clause(comment: str) -> str:
    """Return the first clause of a comment's first sentence."""
    return first_sentence(comment).partition("; ")[0].removesuffix(".") + "."


def unwrapped(field: Any) -> Any:
    """Return the field that holds the values: for a message that only wraps a list, such as TokenIds, that list."""
    inner: Any = field.message_type.fields if field.message_type is not None and not is_map(field) else []
    return inner[0] if len(inner) == 1 and inner[0].is_repeated else field


def is_map(field: Any) -> bool:
    """True if a field is a map, which the wire carries as a list of entries."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_duration(field: Any) -> bool:
    """True if a field is a Duration."""
    return field.message_type is not None and field.message_type.full_name == _DURATION


def enum_names(enum: Any) -> list[str]:
    """Return the values of an enum without their prefix, leaving out UNSPECIFIED."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return [value.name.removeprefix(prefix) for value in enum.values if value.number]


def _comments(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    names: dict[tuple[int, ...], str] = {}
    for part, number in _PARTS.items():
        for index, described in enumerate(getattr(file, part)):
            names |= dict(_named(described, described.name, (number, index), part))
    for location in file.source_code_info.location:
        name = names.get(tuple(location.path))
        if name is not None:
            yield f"{file.package}.{name}", " ".join(location.leading_comments.split())


def _named(described: Any, name: str, path: tuple[int, ...], part: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the paths and names of what has comments in a descriptor, itself first."""
    yield path, name
    for index, member in enumerate(getattr(described, _MEMBERS[part])):
        yield (*path, _OF_MEMBERS, index), f"{name}.{member.name}"
    for index, inner in enumerate(described.nested_type if part == "message_type" else ()):
        yield from _named(inner, f"{name}.{inner.name}", (*path, _OF_MESSAGES, index), part)
