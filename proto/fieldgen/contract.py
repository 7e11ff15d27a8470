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
_OF_MESSAGES, _OF_ENUMS, _OF_FIELDS = 4, 5, 2
"""Field numbers of FileDescriptorProto and DescriptorProto, which make up the paths of comments."""


class Contract:
    """The files of `headrace/v1`, as parsed by buf."""

    def __init__(self) -> None:
        command = [str(TOOLS / "buf"), "build", "--as-file-descriptor-set", "-o", "-"]
        image = subprocess.run(command, cwd=PROTO, check=True, capture_output=True).stdout
        files = FileDescriptorSet.FromString(image)
        self._pool = DescriptorPool()
        self._comments: dict[str, str] = {}
        for file in files.file:
            self._pool.AddSerializedFile(file.SerializeToString())
            self._comments.update(_comments(file))
        self._options = GetMessageClass(self._pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
        self._rules: Any = self._pool.FindExtensionByName("headrace.v1.rules")
        self._metric: Any = self._pool.FindExtensionByName("headrace.v1.metric")

    def message(self, name: str) -> Any:
        """Return the descriptor of one of our messages."""
        return self._pool.FindMessageTypeByName(f"headrace.v1.{name}")

    def comment(self, described: Any) -> str:
        """Return the comment above a message, enum or field, as one line."""
        return self._comments[described.full_name]

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
    for number, enum in enumerate(file.enum_type):
        names[_OF_ENUMS, number] = enum.name
    for number, message in enumerate(file.message_type):
        names[_OF_MESSAGES, number] = message.name
        for index, field in enumerate(message.field):
            names[_OF_MESSAGES, number, _OF_FIELDS, index] = f"{message.name}.{field.name}"
    for location in file.source_code_info.location:
        name = names.get(tuple(location.path))
        if name is not None:
            yield f"{file.package}.{name}", " ".join(location.leading_comments.split())
