"""JSON as models write it: what other parsers refuse is no object."""

from __future__ import annotations

import msgspec
import pytest
from headrace_proto.pure.answers.json_text import object_in


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "\\ud83d\\ude00", "b": -0, "c": 1e-999}',
        '{"a": ' + "9" * 40 + "}",
        '{"a": "\\u0000"}',
        '"{\\"a\\": 1}"',
    ],
)
def test_objects_are_read_by_other_parsers(text: str) -> None:
    found = object_in(text)
    assert found is not None
    assert isinstance(msgspec.json.decode(found), dict)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "\\ud800"}',
        '{"\\udc00": 1}',
        '"{\\"a\\": \\"\\\\ud800\\"}"',
        '{"a": Infinity}',
        "[1]",
        "{",
        '{"a": ' + "[" * 100_000,
    ],
)
def test_what_others_refuse_is_none(text: str) -> None:
    assert object_in(text) is None


@pytest.mark.parametrize("number", ["1e999", "-2.5E+4000", "9" * 5000, "0." + "1" * 5000])
def test_numbers_have_any_size(number: str) -> None:
    assert object_in(f'{{"a": {number}}}') == f'{{"a": {number}}}'
