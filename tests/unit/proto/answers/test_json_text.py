"""JSON as models write it: what other parsers refuse is no object."""

from __future__ import annotations

import json
from itertools import chain, product

import msgspec
import pytest
from headrace_proto.pure.answers.json_depth import is_json
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


def readable(text: str) -> bool:
    """True if Python reads a text as JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_deep_texts_are_told_from_others_as_python_tells_them() -> None:
    tokens = ["{", "}", "[", "]", ",", ":", '"a"', "1"]
    for parts in chain.from_iterable(product(tokens, repeat=size) for size in range(6)):
        text = " ".join(parts)
        assert is_json(text) is readable(text), text


@pytest.mark.parametrize("text", ['"\\x"', '"\n"', "01", "1.", "nul", "NaN", '"a', "1 2", '"\\u12g4"', "[1 2]"])
def test_what_is_no_token_is_no_json(text: str) -> None:
    assert not is_json(text)
    assert not is_json("[" * 2000 + text + "]" * 2000)


@pytest.mark.parametrize("text", ['"\\u00e4\\n"', "-0.5E+7", "true", "{}", '{"a": [null, {}]}', "\t[ ]\r\n"])
def test_values_are_json_however_deep_they_stand(text: str) -> None:
    assert is_json("[" * 100_000 + text + "]" * 100_000)
