"""The rules of a field, as values and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from headrace_proto.wire.integers import INTEGERS

from fieldgen.contract import Contract, is_map

_FIGURES = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_MESSAGE)
Number = int | float


@dataclass(frozen=True)
class Rules:
    """The rules of one field.

    Attributes:
        low, high: smallest and largest value; None: no limit.
        above_low: low itself is not allowed.
        default: as written in the contract; None: `unset` says what an unset field means.
        honoured: values as written in the contract; None: all.
    """

    field: Any
    low: Number | None
    high: Number | None
    above_low: bool
    default: str | None
    unset: str
    honoured: tuple[str, ...] | None
    longest: int
    most: int

    @classmethod
    def of(cls, contract: Contract, field: Any) -> Rules:
        """Return the rules of a field, including the limits of its type."""
        rules, single = contract.rules(field), not field.is_repeated
        low: Number | None
        high: Number | None
        low, high = INTEGERS.get(field.cpp_type, (None, None)) if single else (None, None)
        low = next((_number(getattr(rules, name)) for name in ("above", "at_least") if rules.HasField(name)), low)
        if rules.HasField("at_most"):
            high = None if math.isinf(rules.at_most) else _number(rules.at_most)
        honoured = () if rules.not_supported else None
        return cls(
            field=field,
            low=low,
            high=high,
            above_low=rules.HasField("above"),
            default=rules.default if rules.HasField("default") else None,
            unset=rules.unset,
            honoured=tuple(rules.honoured.split(", ")) if rules.HasField("honoured") else honoured,
            longest=rules.max_bytes,
            most=rules.max_entries,
        )

    @property
    def range(self) -> str:
        """Return its range, such as "(0, 1]" or "1 to 64"; "" if its type implies it."""
        if self.longest or self.most:
            return f"at most {self.longest or self.most} {'bytes' if self.longest else 'entries'}"
        least, widest = INTEGERS.get(self.field.cpp_type, (None, None))
        high = None if self.high == widest else self.high
        if self.low is None or (self.low == least and high is None):
            return ""
        if high is None:
            return f"{'above' if self.above_low else 'at least'} {self.low}"
        if self.field.cpp_type in INTEGERS:
            return f"{self.low} to {high}"
        return f"{'(' if self.above_low else '['}{self.low}, {high}]"

    def literal(self, text: str) -> str:
        """Return a default or an honoured value in Python; for an enum, its name."""
        if self.field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return text.capitalize()
        if self.field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return f'"{text}"'
        return str(float(text)) if self.field.cpp_type in _FIGURES and not is_map(self.field) else text


def _number(value: float) -> Number:
    return int(value) if value == int(value) else value
