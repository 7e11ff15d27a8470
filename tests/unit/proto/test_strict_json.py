"""JSON as clients send it: what other readers drop or change is refused, and named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace_proto.pure.strict_json import MAX_DIGITS, BadJson, NestedTooDeep, read_json
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_what_python_writes_is_read_back(value: Any, escaped: bool) -> None:
    assert read_json(json.dumps(value, ensure_ascii=escaped)) == value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "a"),
        ('{"x": {"a": [1, {"b": 0, "b": 0}]}}', "x.a[1].b"),
        ('[[{"a": 1}, {"a": 1, "a": 1}]]', "[0][1].a"),
        ('{"a": {"b": 1, "b": 2}, "a": 3}', "a"),
        ('{"first": {"k": 1, "k": 1}, "second": {"l": 1, "l": 1}}', "first.k"),
        ('{"": 1, "": 2}', '""'),
        ('{"' + "k" * 1000 + '": 1, "' + "k" * 1000 + '": 2}', "k" * 64),
        ('{"a": ' * 20 + '{"b": 1, "b": 2}' + "}" * 20, "…" + "a." * 7 + "b"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_path(text: str, path: str) -> None:
    with pytest.raises(BadJson, match="twice") as caught:
        read_json(text)
    assert (caught.value.path, str(caught.value)) == (path, f"gives {path} twice")


def test_a_key_behind_many_values_is_named_alone() -> None:
    """Its path is not worth the time and memory that a walk to it would take."""
    text = '{"b": [' + "[]," * 100_000 + '[]], "c": {"x": 1, "x": 1}}'
    with pytest.raises(BadJson, match=r"^gives …x twice$") as caught:
        read_json(text)
    assert caught.value.path == "…x"


def test_a_text_with_many_keys_twice_is_read_no_further() -> None:
    """What follows is no JSON, and nobody gets there."""
    with pytest.raises(BadJson, match=r"^gives …a twice$"):
        read_json('{"b": [' + '{"a": 1, "a": 1},' * 1000 + "!")
    with pytest.raises(BadJson) as caught:
        read_json("[" + r'{"\ud800": 1, "\ud800": 1},' * 1000)
    assert str(caught.value).encode() == "gives …? twice".encode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON: "),
        ("{", "is not JSON: "),
        ("[1] 2", "is not JSON: "),
        ("[NaN]", "has NaN, which is no number of JSON"),
        ("-Infinity", "has -Infinity, which is no number"),
        ("[1e999]", "has the number 1e999, which is out of range"),
        ("9" * (MAX_DIGITS + 1), "which is out of range"),
        (r'"\ud800"', "half a surrogate pair"),
        (r'{"\udc00": 1}', "half a surrogate pair"),
        (r'"\ud83d\ud83d\ude00"', "half a surrogate pair"),
        (r'"\ud83d\ude00\ude00"', "half a surrogate pair"),
        (r'"\ud83d\\\ude00"', "half a surrogate pair"),
    ],
)
def test_what_is_not_json_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadJson, match=problem) as caught:
        read_json(text)
    assert not caught.value.path


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 3000 + "]" * 3000])
def test_what_is_nested_too_deep_is_told_apart(text: str) -> None:
    with pytest.raises(NestedTooDeep):
        read_json(text)


def test_an_escaped_backslash_begins_no_half_of_a_pair() -> None:
    assert read_json(r'["\\ud800", "\n\\\\udc00\ud83d\ude00"]') == [r"\ud800", "\n" + r"\\udc00" + "😀"]


def test_pairs_of_surrogates_and_large_numbers_are_read() -> None:
    assert read_json(r'["\ud83d\ude00", ' + "9" * MAX_DIGITS + "]") == ["😀", int("9" * MAX_DIGITS)]
