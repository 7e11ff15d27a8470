"""Messages with every field set, made from their descriptors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from headrace_engine.errors import FailedPrecondition, FieldViolation
from headrace_engine.service.convert.status import fill_status

NOT_IN_DOMAIN = {
    "headrace.v1.EngineStat.api_version",  # of the server, added by engine_stats
    "headrace.v1.EngineStat.build",
}
"""Fields that no engine object carries in this build."""


def filled(kind: type[Message]) -> Iterator[Message]:
    """Messages of a type in which every field is set; as many as its deepest oneof has choices."""
    for choice in itertools.count():
        filler = _Filler(choice)
        message = filler.fill(kind())
        yield message
        if choice + 1 >= filler.choices:
            return


class _Filler:
    """Sets all fields to different values; of a oneof, the field whose number is `choice`."""

    def __init__(self, choice: int) -> None:
        self.choices = 1
        self._choice = choice
        self._numbers = itertools.count(1)

    def fill(self, message: Any) -> Any:
        if message.DESCRIPTOR.full_name == "headrace.v1.Status":
            fill_status(_failure(next(self._numbers)), message)
            return message
        if message.DESCRIPTOR.full_name in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
            message.seconds, message.nanos = next(self._numbers), 500_000_000
            return message
        for field in message.DESCRIPTOR.fields:
            if field.full_name == "headrace.v1.GeneratedElements.tensors":
                _add_tensors(message)
            elif field.full_name not in NOT_IN_DOMAIN and self._chosen(field):
                self._set(message, field)
        if message.DESCRIPTOR.full_name == "headrace.v1.PrefixReuse":
            message.prefix_cache_len = message.prefix_len_gpu + message.prefix_len_cpu
        if message.DESCRIPTOR.full_name == "headrace.v1.EngineStat":
            hits, misses = message.prefix_cache_hit_tokens, message.prefix_cache_miss_tokens
            message.prefix_cache_hit_rate, message.prefix_cache_miss_rate = (
                hits / (hits + misses),
                misses / (hits + misses),
            )
        message.SetInParent()
        return message

    def _chosen(self, field: Any) -> bool:
        oneof = field.containing_oneof
        if oneof is None or len(oneof.fields) == 1:
            return True
        self.choices = max(self.choices, len(oneof.fields))
        return oneof.fields[self._choice % len(oneof.fields)].name == field.name

    def _set(self, message: Any, field: Any) -> None:
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            target[self._value(key)] = self._value(value)
        elif field.is_repeated and field.message_type is not None:
            self.fill(target.add())
            self.fill(target.add())
        elif field.is_repeated:
            target.extend([self._value(field), self._value(field)])
        elif field.message_type is not None:
            self.fill(target)
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        number = next(self._numbers)
        if field.enum_type is not None:
            values = field.enum_type.values[1:]
            return values[number % len(values)].number
        if field.cpp_type == field.CPPTYPE_STRING:
            return f"text {number}" if field.type == field.TYPE_STRING else b"bytes %d" % number
        if field.cpp_type == field.CPPTYPE_BOOL:
            return True
        return number + 0.5 if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) else number


def _add_tensors(message: Any) -> None:
    """Those that there are, of two tokens and vectors of three entries."""
    for number, name in enumerate(("inputs_embedding", "hidden_states")):
        tensor = {"dtype": "TENSOR_DTYPE_FLOAT32", "shape": [2, 3], "data": bytes([number] * 24)}
        message.tensors.add(name=name, tensor=tensor)


def _failure(number: int) -> FailedPrecondition:
    return FailedPrecondition(
        f"failure {number}",
        violations=[FieldViolation("config.max_length", "is too long")],
        metadata={"model_name": "smol", "limit": str(number)},
        retry_after=1.5,
        state="STOPPED",
    )


def unset_fields(message: Message, path: str = "") -> Iterator[str]:
    """Paths of the fields of a message, at any depth, that are not set."""
    present = {field.name for field, _ in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        other = oneof is not None and message.WhichOneof(oneof.name) is not None
        if field.name not in present and not other and field.full_name not in NOT_IN_DOMAIN:
            yield f"{path}{field.name}"
