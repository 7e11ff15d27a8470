"""What machines promise of any text: its pieces do not matter, nothing is lost, and what is certain comes at once."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from headrace_proto.pure.answers.formats import CALLS, THOUGHTS, machine_of
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Thought
from hypothesis import given
from hypothesis import strategies as st
from support.parted import fed, parted

TOOLS: Any = [
    {"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}}
]
SCRAPS = [
    *("f", "g", "a", "b", " ", "\n", "1", "{", "}", "[", "]", "(", ")", ",", ";", ":", "=", '"', "'", "\\", "<", ">"),
    *('{"name": "f", "arguments": {"a": "x"}}', '{"name": "f"', '"arguments": {', "function<｜tool▁sep｜>f\n```json\n"),
    *("f(a='x', b=[1, {'c': None}])", "f{a:1}", "functions.f:0", '{"a": "\\ud800"}', "all\n", ">>>", "\\u00", "é😀"),
]


def texts(name: str) -> st.SearchStrategy[str]:
    """Texts of the marks of a format, of what stands between them, and of other things."""
    thoughts = [mark for style in THOUGHTS.values() for mark in (style.open, style.close)]
    return st.lists(st.sampled_from([*CALLS[name].all_marks, *CALLS[name].all_marks, *SCRAPS, *thoughts])).map("".join)


@pytest.mark.parametrize("name", CALLS)
@given(data=st.data())
def test_pieces_of_the_text_do_not_matter(name: str, data: st.DataObject) -> None:
    text = data.draw(texts(name))
    thoughts = data.draw(st.sampled_from(["", *THOUGHTS]))
    opened = bool(thoughts) and data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    or_json, shown = data.draw(st.booleans()), data.draw(st.booleans())
    new = partial(machine_of, name, thoughts, opened, TOOLS, or_json=or_json, shown=shown)
    whole = fed(new(), text)
    assert fed(new(), text, cuts) == whole
    assert fed(new(), text, range(1, len(text))) == whole


@pytest.mark.parametrize("name", CALLS)
@given(text=st.text("abc {}[]<|>:\n'\"\\"))
def test_text_without_marks_stays_as_it_is(name: str, text: str) -> None:
    whole = "Well, " + text
    assert "".join(str(piece) for piece in fed(machine_of(name, "", False, TOOLS), whole, [3, 9])) == whole


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("hermes", "Plain < text <tool", ["Plain < text <tool"]),
        ("hermes", "<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
        ("hermes", '<tool_call>{"name": 3}</tool_call>!', ['<tool_call>{"name": 3}</tool_call>!']),
        ("hermes", r'<tool_call>{"name": "\udfff"}</tool_call>', [r'<tool_call>{"name": "\udfff"}</tool_call>']),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}', [("f", "{}")]),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a": 1}')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "no"}', ['<tool_call>{"name": "f", "arguments": "no"}']),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', [("f", '{"a": 1')]),
        ("llama3_json", ' {"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": 2}}', [
            ("f", "{}"), ("g", '{"b": 2}')
        ]),
        ("llama3_json", 'Use {"name": "f"}', ['Use {"name": "f"}']),
        ("llama3_json", '{"name": "f"', ['{"name": "f"']),
        ("llama3_json", '{"colour": "blue"}', ['{"colour": "blue"}']),
        ("llama3_json", "", []),
        ("mistral", 'Well.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', ["Well.", ("f", '{"a": 1}'), ("g", "{}")]),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', [("f", '{"a": 1}')]),
        ("mistral", "[TOOL_CALLS] nonsense", ["[TOOL_CALLS] nonsense"]),
        ("glm45", "<tool_call>f", ["<tool_call>f"]),
        ("glm45", "<tool_call>f<arg_key>b</arg_key><arg_value>1", [("f", '{"b": ')]),
        ("qwen3_coder", "<tool_call>\nnothing", ["<tool_call>\nnothing"]),
        ("kimi_k2", "<|tool_calls_section_begin|>no", ["<|tool_calls_section_begin|>no"]),
        ("harmony", "<|channel|>anal", ["<|channel|>anal"]),
        ("harmony", "No channel at all.", ["No channel at all."]),
        ("pythonic", "[1, 2]", ["[1, 2]"]),
    ],
)  # fmt: skip
def test_what_is_no_call_stays_text(name: str, text: str, found: list[Any], size: int) -> None:
    assert parted(name, text, size=size) == found


_FINAL = "<|channel|>final<|message|>"
_CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"


@pytest.mark.parametrize("size", [0, 1, 4])
@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("glm45", '{"a": "<tool_call>f</tool_call>"}', ['{"a": "<tool_call>f</tool_call>"}']),
        ("glm45", '{"a": "<tool_c', ['{"a": "<tool_c']),
        ("glm45", "\n<tool_call>f</tool_call>\n<tool_call>g</tool_call>", [("f", "{}"), ("g", "{}")]),
        ("glm45", "<tool_call>f", ["<tool_call>f"]),
        ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": 1', [
            ("f", '{"a": 1')
        ]),
        ("mistral", "[1]", ["[1]"]),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}", [("f", "{}")]),
        ("phi4_functools", "false", ["false"]),
        ("pythonic", '["f(a=1)"]', ['["f(a=1)"]']),
        ("pythonic", "[f(a=1), g()]", [("f", '{"a": 1}'), ("g", "{}")]),
        ("harmony", _CALL, [("f", "{}")]),
        ("harmony", f'{_FINAL}{{"a": "<|end|><|start|>assistant{_CALL}"}}', [
            f'{{"a": "<|end|><|start|>assistant{_CALL}"}}'
        ]),
        ("harmony", "<|channel|>fin", ["<|channel|>fin"]),
    ],
)  # fmt: skip
def test_what_does_not_begin_as_calls_is_json(name: str, text: str, found: list[Any], size: int) -> None:
    assert parted(name, text, or_json=True, size=size) == found


@pytest.mark.parametrize("size", [0, 1, 4])
@pytest.mark.parametrize(
    ("opened", "text", "found"),
    [
        (False, "<think>\nA river.\n</think>\n\nBlue.", [Thought("\nA river.\n"), "Blue."]),
        (True, "A river.\n</think>\n\nBlue.", [Thought("A river.\n"), "Blue."]),
        (True, "<think>A river.</think>Blue.", [Thought("A river."), "Blue."]),
        (False, "<think>\n\n</think>\n\nBlue.", ["Blue."]),
        (False, "\n<think>never </thi", [Thought("never </thi")]),
        (False, "Blue. <think>no</think>", ["Blue. <think>no</think>"]),
        (False, " <thin ice", [" <thin ice"]),
        (False, '<think>Call it.</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>', [
            Thought("Call it."), ("f", "{}")
        ]),
    ],
)  # fmt: skip
def test_thoughts_are_parted_from_the_answer(opened: bool, text: str, found: list[Any], size: int) -> None:
    assert parted("hermes", text, "think", opened=opened, size=size) == found


def test_parameters_are_of_the_types_of_their_tool() -> None:
    call = "<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value><arg_key>b</arg_key><arg_value>12</arg_value>"
    (found,) = parted("glm45", f"{call}</tool_call>", tools=TOOLS)
    assert json.loads(found[1]) == {"a": "12", "b": 12}


def test_what_is_certain_is_given_on_at_once() -> None:
    machine = machine_of("hermes", "", False, ())
    assert machine.feed("The river") == ["The river"]
    assert machine.feed(" <") == [" "]
    assert machine.feed("3") == ["<3"]
    assert machine.feed('<tool_call>{"name": "f"') == []
    assert machine.feed(', "arguments": {"a"') == [CallBegin("f"), Arguments('{"a"')]
    assert machine.feed(': "long') == [Arguments(': "long')]
    assert machine.feed('"}}</tool_call>') == [Arguments('"}')]


@pytest.mark.parametrize("name", CALLS)
def test_a_text_is_read_once(name: str) -> None:
    """The text that is held for later stays short, however long marks, names or values grow."""
    for scrap in ("<", " ", "x", "[", *CALLS[name].all_marks):
        for or_json in (False, True):
            machine = machine_of(name, "", False, TOOLS, or_json=or_json)
            for _ in range(200):
                machine.feed(scrap * 100)
            assert len(machine._reader.text) < 10_000  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_thoughts_that_are_shown_keep_their_marks(size: int) -> None:
    for style in THOUGHTS:
        whole = f"\n{THOUGHTS[style].open}So <it> is.{THOUGHTS[style].close}\n\nWell."
        for text in (whole, f" {whole[:20]}", "So", whole.replace(THOUGHTS[style].open, "So ")):
            assert parted("hermes", text, style, size=size, shown=True) == [text]
        for text in (whole, "So <it>", f"So{THOUGHTS[style].close} Well."):
            assert parted("", text, style, opened=True, size=size, shown=True) == [text]
    hidden = "Here are my reasoning steps:\nSo.[BEGIN FINAL RESPONSE]Well.[END FINAL RESPONSE]"
    assert parted("apriel", hidden, "apriel", size=size, shown=True) == ["Here are my reasoning steps:\nSo.Well."]
