"""Constraints on fields, and checks of a config against a table of fields."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_engine.errors import FieldViolation, InvalidArgument

UINT32 = 2**32 - 1
MAX_SYMBOLS = 65_536
"""Maximum number of characters or ids of all words of one field together."""

ID_PORTION = 16_384
"""Ids that are checked or copied at once: a millisecond's work."""

_INTEGERS = {int, bool}

NOT_YET = "is not supported by this engine yet"
"""Text of every refusal of a feature that is not implemented yet."""


@dataclass(frozen=True, slots=True)
class Field:
    """The constraints on a field.

    Attributes:
        low, high: smallest and largest value; None: no limit.
        above_low: `low` itself is not allowed.
        default: value of an unset field; None where it depends on more than the field.
        honoured: values that this build supports; None: all in range.
        longest: maximum number of bytes of a text.
        most: maximum number of entries of a list.
    """

    name: str
    low: float | None = None
    high: float | None = None
    above_low: bool = False
    default: Any = None
    honoured: tuple[Any, ...] | None = None
    longest: int | None = None
    most: int | None = None

    def violation(self, value: Any) -> str | None:
        """Return a description of why a value is out of range; None: it is in range."""
        if isinstance(value, str):
            return _too_many(len(value.encode(errors="surrogatepass")), self.longest, "bytes")
        if isinstance(value, tuple):
            return self.too_many(len(value))
        if isinstance(value, float) and not math.isfinite(value):
            return f"= {value} is not finite; allowed: {self.range_text}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        too_low = self.low is not None and (value <= self.low if self.above_low else value < self.low)
        if too_low or (self.high is not None and value > self.high):
            return f"= {value} is out of range; allowed: {self.range_text}"
        return None

    def too_many(self, entries: int) -> str | None:
        """Return a description of why a list of this length is too long; None: it is not."""
        return _too_many(entries, self.most, "entries")

    @property
    def range_text(self) -> str:
        """Range as text, such as "above 0, at most 2"."""
        words = []
        if self.low is not None:
            words.append(f"{'above' if self.above_low else 'at least'} {_number(self.low)}")
        if self.high is not None:
            words.append(f"at most {_number(self.high)}")
        return ", ".join(words) or "any finite number"


def table(*fields: Field) -> Mapping[str, Field]:
    """Return the fields by name."""
    return {field.name: field for field in fields}


def is_set(value: Any) -> bool:
    """True if a caller set this value: it is neither None nor an empty list or mapping."""
    if value is None:
        return False
    return not (isinstance(value, tuple | dict) and not value)


def check(config: Any, fields: Mapping[str, Field], prefix: str) -> None:
    """Refuse values that are out of range or not supported by this build, naming all of them.

    Args:
        config: a dataclass with the table's fields.
        prefix: path of the config in the request, such as "config.".

    Raises:
        InvalidArgument: INVALID_FIELD; or NOT_SUPPORTED where all values are in range.
    """
    given = {name: getattr(config, name) for name in fields}
    given = {name: value for name, value in given.items() if is_set(value)}
    wrong = [(name, fields[name].violation(value)) for name, value in given.items()]
    refuse([FieldViolation(prefix + name, text) for name, text in wrong if text])
    refuse(
        [
            FieldViolation(prefix + name, _not_yet(fields[name], value))
            for name, value in given.items()
            if not honoured(fields[name], value)
        ],
        "NOT_SUPPORTED",
    )


def check_symbols(config: Any, *names: str) -> None:
    """Refuse words (texts or lists of ids) that are together longer than MAX_SYMBOLS.

    Args:
        names: the fields that list them.

    Raises:
        InvalidArgument: naming the field.
    """
    for name in names:
        words = getattr(config, name)
        size = sum(map(len, words))
        if size > MAX_SYMBOLS:
            unit = "characters" if isinstance(words[0], str) else "ids"
            raise InvalidArgument.field(f"config.{name}", f"has {size} {unit} in all; allowed: at most {MAX_SYMBOLS}")


def check_ids(field: str, ids: Iterable[int], vocab_size: int, holes: Collection[int] = ()) -> None:
    """Refuse ids that are not in the model's vocabulary.

    Args:
        vocab_size: number of ids of the model.
        holes: ids below it that the tokenizer does not define.

    Raises:
        InvalidArgument: naming the first such id and the range.
    """
    found = ids if isinstance(ids, Sequence) else tuple(ids)
    for start in range(0, len(found), ID_PORTION):
        portion = found[start : start + ID_PORTION]
        if not _all_known(portion, vocab_size, holes):
            _refuse_first(field, portion, vocab_size, holes)


def _all_known(ids: Sequence[Any], vocab_size: int, holes: Collection[int]) -> bool:
    """True if all ids are known. What it calls are loops of the interpreter, some ten times as fast as its code."""
    numbers = set(map(type, ids)) <= _INTEGERS
    return numbers and min(ids) >= 0 and max(ids) < vocab_size and not any(map(holes.__contains__, ids))


def _refuse_first(field: str, ids: Iterable[Any], vocab_size: int, holes: Collection[int]) -> None:
    for token_id in ids:
        if token_id in holes:
            raise InvalidArgument.field(field, f"holds {token_id}, which the model's tokenizer does not define")
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            text = f"holds {token_id!r}, which is not a valid token id; allowed: 0 to {vocab_size - 1}"
            raise InvalidArgument.field(field, text)


def tuple_of(ids: Sequence[int]) -> tuple[int, ...]:
    """Return ids as a tuple, copied in portions, between which other threads have turns."""
    if isinstance(ids, tuple):
        return ids
    found: list[int] = []
    for start in range(0, len(ids), ID_PORTION):
        found += ids[start : start + ID_PORTION]
    return tuple(found)


def honoured(field: Field, value: Any) -> bool:
    """True if this build supports the value."""
    return field.honoured is None or value in field.honoured


def refuse(violations: Iterable[FieldViolation], reason: str = "INVALID_FIELD") -> None:
    """Raise InvalidArgument naming every violation, if there is any."""
    found = list(violations)
    if found:
        raise InvalidArgument.fields(found, reason=reason)


def _too_many(size: int, limit: int | None, unit: str) -> str | None:
    return f"has {size} {unit}; allowed: at most {limit}" if limit is not None and size > limit else None


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _not_yet(field: Field, value: Any) -> str:
    """Return text such as "= 4 is not supported by this engine yet; allowed: 1"."""
    shown = f"= {value} " if isinstance(value, int | float | str) and value != "" else ""
    allowed = ", ".join(str(one) for one in field.honoured or () if one != "")
    return f"{shown}{NOT_YET}" + (f"; allowed: {allowed}" if allowed else "")
