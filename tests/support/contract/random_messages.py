"""Random messages of the contract: with fields at their bounds and beyond, and with bytes that were changed; others
that are right but for one field, so that it is not the first of many to be refused.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_DEEPEST = 4
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31),
}
_NUMBERS = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "a", "e1", "some/name", "é\u0000\U0001f600", "{}", '{"type": "object"}', "[1", "x" * 300)


class RandomMessages:
    """Makes messages.

    Args:
        random_: chooses.
        texts: values of text fields by their names, in addition to some that mean nothing.
    """

    def __init__(self, random_: random.Random, texts: Mapping[str, Sequence[str]]) -> None:
        self._random, self._texts = random_, texts

    def data(self, kind: Descriptor) -> bytes:
        """Return the bytes of a message, of which a third have been changed somewhere."""
        data = bytearray(self.message(kind).SerializeToString())
        if data and self._random.random() < 1 / 3:
            for _ in range(self._random.randint(1, 4)):
                data[self._random.randrange(len(data))] = self._random.randrange(256)
            del data[self._random.randint(len(data) // 2, len(data)) :]
        return bytes(data)

    def message(self, kind: Descriptor, depth: int = 0) -> Message:
        """Return a message in which some fields are set."""
        made = GetMessageClass(kind)()
        share = self._random.choice((0.1, 0.3, 0.8))
        for field in kind.fields:
            if self._random.random() < share and depth < _DEEPEST:
                self._set(made, field, depth)
        return made

    def near(self, right: Message) -> bytes:
        """Return the bytes of a message that differs from a right one in one field, at any depth."""
        made = type(right)()
        made.CopyFrom(right)
        changed: Message = made
        while (inner := _parts(changed)) and self._random.random() < 0.7:
            changed = self._random.choice(inner)
        field = self._random.choice(changed.DESCRIPTOR.fields)
        changed.ClearField(field.name)
        self._set(changed, field, _DEEPEST - 2)
        return made.SerializeToString()

    def _set(self, made: Message, field: FieldDescriptor, depth: int) -> None:
        name, count = field.name, self._random.choice((0, 1, 1, 2))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(count):
                entry = self.message(field.message_type, depth + 1)
                if isinstance(getattr(entry, "value", None), Message):
                    getattr(made, name)[entry.key].CopyFrom(entry.value)
                else:
                    getattr(made, name)[entry.key] = entry.value
        elif field.message_type is not None and field.is_repeated:
            getattr(made, name).extend(self.message(field.message_type, depth + 1) for _ in range(count))
        elif field.message_type is not None:
            getattr(made, name).CopyFrom(self.message(field.message_type, depth + 1))
        elif field.is_repeated:
            getattr(made, name).extend(self._scalar(field) for _ in range(count))
        else:
            setattr(made, name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        choose = self._random
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return choose.random() < 0.5
        if field.cpp_type in _INTEGERS:
            low, high = _INTEGERS[field.cpp_type]
            return choose.choice((0, 1, 2, 3, 16, 1000, low, high - 1, choose.randrange(low, high)))
        if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return choose.choice((*_NUMBERS, choose.uniform(-3, 3)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return choose.randbytes(choose.choice((0, 1, 4, 64)))
        known = self._texts.get(field.name, ())
        return choose.choice(known) if known and choose.random() < 0.8 else choose.choice(_TEXTS)


def _parts(message: Message) -> list[Message]:
    """Return the messages within a message, also those of lists, without maps."""
    found: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found += value if field.is_repeated else [value]
    return found
