"""Answers beside a format of JSON are calls alone or JSON alone, and machines tell the two apart."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.calls.wanted import WantedCalls
from headrace_engine.guided.check import check
from headrace_engine.guided.grammar import MAX_BYTES
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_proto.pure.answers.formats import CALLS
from support.models.guided_walks import ids_of
from support.parted import parted
from unit.guided.test_call_grammars import EMPTY, FORMATS, GOOD, SCHEMA, TOOLS, Letters, accepts, drawn, guide, wanted

TOLD_APART = [name for name in FORMATS if name != "llama3_json"]
HELD = {"weather": SCHEMA, "time": EMPTY}
CALL = GOOD.replace("\n", "")


def letters_of(calls: str, special: bool) -> Letters:
    return Letters([*CALLS[calls].all_marks, "<think>", "</think>"] if special else [])


@cache
def written(calls: str) -> str:
    """A call as the format writes it."""
    letters = letters_of(calls, special=False)
    what = wanted(calls, required=True, parallel=False, names=("time",), thoughts="")
    text = next(text for seed in range(20) if (text := drawn(letters, guide(letters, what), seed)) is not None)
    ((name, arguments),) = parted(calls, text, tools=TOOLS)
    assert (name, json.loads(arguments)) == ("time", {})
    return text


def schema_of(calls: str) -> dict[str, Any]:
    """Any kind of value; strings may have a whole call within them."""
    said = {"enum": [written(calls), "no"]}
    thing = {"type": "object", "properties": {"said": said}, "required": ["said"], "additionalProperties": False}
    return {
        "anyOf": [thing, {"type": "array", "items": {"anyOf": [said, thing]}, "maxItems": 2}, said, {"enum": [False]}]
    }


def is_right(calls: str, text: str, schema: Any, parallel: bool) -> str:
    """What an answer is, after it was checked: "calls" or "JSON"; the same in pieces of any size."""
    found = parted(calls, text, "think", tools=TOOLS, or_json=True)
    for size in (1, 3):
        assert parted(calls, text, "think", tools=TOOLS, or_json=True, size=size) == found
    if isinstance(found[0], str):
        (said,) = found
        jsonschema.validate(json.loads(said), schema)
        return "JSON"
    assert parallel or len(found) == 1
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), HELD[name])
    return "calls"


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("calls", TOLD_APART)
def test_an_answer_is_calls_or_json(calls: str, special: bool) -> None:
    letters, schema, seen = letters_of(calls, special), schema_of(calls), set()
    vocabulary = Vocabulary(letters, len(letters.pieces))
    for parallel in (False, True):
        what = wanted(calls, parallel=parallel, schema=json.dumps(schema))
        grammar = check(vocabulary, what.format()).grammar
        for seed in range(80):
            if seed >= 8 and len(seen) == 2:
                break
            text = drawn(letters, vocabulary.guide(grammar, (letters.eos,)), seed)
            if text is not None:
                seen.add(is_right(calls, text, schema, parallel))
    assert seen == {"calls", "JSON"}


@pytest.mark.parametrize("calls", TOLD_APART)
def test_json_with_a_call_in_its_strings_is_text(calls: str) -> None:
    schema, call = schema_of(calls), written(calls)
    what = wanted(calls, schema=json.dumps(schema))
    head = "<|channel|>final<|message|>" if calls == "harmony" else ""
    for value in ({"said": call}, [call, {"said": call}], call, False):
        text = head + json.dumps(value, ensure_ascii=False)
        assert accepts(letters_of(calls, special=False), what, text)
        (said,) = parted(calls, text, "think", tools=TOOLS, or_json=True)
        assert json.loads(said) == value


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("calls", TOLD_APART)
def test_nothing_stands_beside_calls_or_json(calls: str, special: bool) -> None:
    letters = letters_of(calls, special)
    what = wanted(calls, schema='{"type": "object"}', parallel=False)
    call, text = written(calls), '{"a": [1, "b"]}'
    head = "<|channel|>final<|message|>" if calls == "harmony" else ""
    for right in (call, head + text):
        assert accepts(letters, what, right)
        for wrong in (f"Well. {right}", f"{right} Done.", f"<think>So</think>{right}", f"{right}{right}", right[:-1]):
            assert not accepts(letters, what, wrong)
    for wrong in ("", "Hello.", call + text, head + text + call, f"{head}[1]", f"{head}5"):
        assert not accepts(letters, what, wrong)


@pytest.mark.parametrize(
    ("text", "one", "more", "named"),
    [
        (CALL, True, True, True),
        (f"{CALL}\n{CALL}", False, True, False),
        (f" \n{CALL}", True, True, True),
        (CALL.replace("time", "other"), False, False, False),
        (CALL.replace("time", "weather"), False, False, False),
        ('{"a": 1}', True, True, True),
        (' \n{"a": 1}', True, True, True),
        ('{"a": 3}', False, False, False),
        ('{"name": "time", "arguments": {}}', False, False, False),
    ],
)
def test_calls_are_those_that_the_choice_allows(text: str, one: bool, more: bool, named: bool) -> None:
    schema = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "additionalProperties": false}'
    letters = Letters([])
    assert accepts(letters, wanted("hermes", schema=schema, parallel=False), text) is one
    assert accepts(letters, wanted("hermes", schema=schema), text) is more
    assert accepts(letters, wanted("hermes", schema=schema, parallel=False, names=("time",)), text) is named


@pytest.mark.parametrize("calls", TOLD_APART)
def test_no_json_begins_as_calls_do(calls: str) -> None:
    letters = Letters([])
    vocabulary = Vocabulary(letters, len(letters.pieces))
    grammar = check(vocabulary, ResponseFormat(ResponseFormatKind.JSON_SCHEMA, "true")).grammar
    form = CALLS[calls]
    mark = form.layout.open if form.layout is not None else "<|channel|>"
    for begin in [mark or "[time(", *(begin for begin, _ in form.sections)]:
        following, taken = vocabulary.guide(grammar, (letters.eos,)), 0
        for token_id in letters.ids(begin):
            if token_id not in ids_of(following):
                break
            following.take([token_id])
            taken += 1
        assert taken < len(begin.encode())


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (
            "llama3_json",
            "cannot be enforced beside response_format: calls in the format llama3_json begin as JSON does",
        ),
        ("functionary_v32", "calls in the format functionary_v32 have no grammar"),
    ],
)
def test_calls_that_cannot_be_told_from_json_are_refused(calls: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters([]), wanted(calls, schema='{"type": "object"}'))


@pytest.mark.parametrize("calls", ["hermes", "harmony"])
def test_a_schema_beside_calls_is_checked(calls: str) -> None:
    tool = json.dumps(TOOLS[1])
    for schema, words in (
        ('{"type": "no"}', "cannot be compiled"),
        ("false", "allows nothing"),
        ('{"a": 1}', "wrapper"),
        ("", "json_schema"),
        ('{"type": "object", "type": "string"}', "twice"),
        (json.dumps({"enum": ["x" * MAX_BYTES]}), f"allowed: at most {MAX_BYTES}"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            guide(Letters([]), WantedCalls(calls, "", opened=False, tools=(tool,), schema=schema))
    warned = wanted(calls, schema='{"type": "string", "format": "colour"}')
    letters = Letters([])
    assert check(Vocabulary(letters, len(letters.pieces)), warned.format()).warnings


@pytest.mark.parametrize("calls", ["hermes", "harmony", "qwen3_coder"])
def test_a_warning_says_of_tools_and_format_which_it_is_about(calls: str) -> None:
    """Also where both have the same one."""
    letters, doubtful = Letters([]), {"format": "colour", "type": "string"}
    parameters = {"properties": {"a": {"type": "array", "items": doubtful}}}
    tool = json.dumps({"function": {"name": "f", "parameters": parameters}})
    what = WantedCalls(calls, "", opened=False, tools=(tool,), strict=("f",), schema=json.dumps(doubtful))
    warnings = check(Vocabulary(letters, len(letters.pieces)), what.format()).warnings
    ends = [one.partition(": ")[::2] for one in warnings]
    assert [begin for begin, _ in ends] == ["tools", "json_schema"]
    assert ends[0][1] == ends[1][1]
