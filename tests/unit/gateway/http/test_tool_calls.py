"""Calls of tools, as published templates write them, come back from the text in whatever pieces it arrives."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from headrace_gateway.http.tools.calls import Call, call_in, calls_in
from headrace_gateway.http.tools.choice import MACHINES, ToolParser, parser_of
from headrace_gateway.http.tools.machines import MAX_BLANK, MAX_CALL, Machine, Thinking, Thought

TEMPLATES = Path(__file__).parents[3] / "templates"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
USER = {"role": "user", "content": "How is the weather?"}
ARGUMENTS = [{"place": 'Zürich "}</tool_cal'}, {"place": "Łódź", "days": [1, {"a": None}]}]


def rendered(name: str, messages: list[Any], **more: Any) -> str:
    """What a published template makes of a conversation with a tool."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    template = environment.from_string((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
    return template.render(messages=messages, tools=[TOOL], bos_token="<s>", eos_token="</s>", **more)


def calling(name: str, end: str) -> str:
    """The text by which the template lets the assistant make two calls."""
    calls = [
        {"id": f"call{number}abcd", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        for number, arguments in enumerate(ARGUMENTS)
    ]
    before = rendered(name, [USER], add_generation_prompt=True)
    whole = rendered(name, [USER, {"role": "assistant", "content": "", "tool_calls": calls}])
    assert whole.startswith(before)
    return whole[len(before) :].rstrip().removesuffix(end)


def read(parser: ToolParser, text: str, size: int) -> list[str | Call]:
    """What a machine finds in a text in pieces of some size; texts that follow each other joined."""
    return read_by(MACHINES[parser](), text, size)


def read_by(machine: Machine, text: str, size: int) -> list[Any]:
    found: list[Any] = []
    for at in range(0, len(text), size):
        found += machine.feed(text[at : at + size])
    found += machine.end()
    joined: list[Any] = []
    for piece in found:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif isinstance(piece, Thought) and joined and isinstance(joined[-1], Thought):
            joined[-1] = Thought(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize(
    ("template", "parser", "end"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "hermes", "<|im_end|>"),
        ("Qwen-Qwen3-0.6B", "hermes", "<|im_end|>"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", "</s>"),
    ],
)
def test_calls_of_published_templates_come_back(template: str, parser: ToolParser, end: str, size: int) -> None:
    assert parser_of(rendered(template, [USER], add_generation_prompt=True)) == parser
    found = read(parser, calling(template, end), size)
    calls = [piece for piece in found if isinstance(piece, Call)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", one) for one in ARGUMENTS]
    texts = [piece for piece in found if isinstance(piece, str)]
    assert "".join(texts).strip() in ("", "<think>\n\n</think>")  # Qwen 3 writes that it has not thought.


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("parser", "text", "found"),
    [
        ("hermes", "Plain < text <tool", ["Plain < text <tool"]),
        (
            "hermes",
            'Let me see.<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\nDone.',
            ["Let me see.", Call("f", '{"a": 1}'), "\nDone."],
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}', [Call("f", "{}")]),
        ("hermes", "<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
        ("hermes", '<tool_call>{"name": 3}</tool_call>!', ['<tool_call>{"name": 3}</tool_call>!']),
        ("llama3_json", '{"name": "f", "parameters": {"a": [1]}}', [Call("f", '{"a": [1]}')]),
        (
            "llama3_json",
            ' {"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": 2}}',
            [Call("f", "{}"), Call("g", '{"b": 2}')],
        ),
        ("llama3_json", 'Use {"name": "f"}', ['Use {"name": "f"}']),
        ("llama3_json", '{"name": "f"', ['{"name": "f"']),
        ("llama3_json", '{"colour": "blue"}', ['{"colour": "blue"}']),
        ("llama3_json", "", []),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', [Call("f", '{"a": 1}')]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": {"b": 1}}', [Call("f", '{"a": {"b": 1}}')]),
        (
            "mistral",
            'Well.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
            ["Well.", Call("f", '{"a": 1}'), Call("g", "{}")],
        ),
        ("mistral", "Plain [TOOL", ["Plain [TOOL"]),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{", ["[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{"]),
        ("mistral", "[TOOL_CALLS] nonsense", ["[TOOL_CALLS] nonsense"]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": NaN}', ['[TOOL_CALLS]f[ARGS]{"a": NaN}']),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1e999}}', ['{"name": "f", "parameters": {"a": 1e999}}']),
        (
            "llama3_json",
            r'{"name": "f", "parameters": {"a": "\ud800"}}',
            [r'{"name": "f", "parameters": {"a": "\ud800"}}'],
        ),
        ("hermes", r'<tool_call>{"name": "\udfff"}</tool_call>', [r'<tool_call>{"name": "\udfff"}</tool_call>']),
    ],
)
def test_what_is_no_call_stays_text(parser: ToolParser, text: str, found: list[Any], size: int) -> None:
    assert read(parser, text, size) == found


def test_text_is_given_on_as_it_comes() -> None:
    machine = MACHINES["hermes"]()
    assert machine.feed("The river") == ["The river"]
    assert machine.feed(" <") == [" "]
    assert machine.feed("3") == ["<3"]


def test_a_call_that_never_ends_becomes_text() -> None:
    text = "<tool_call>" + "x" * (MAX_CALL + 10)
    assert read("hermes", text, 50_000) == [text]


@pytest.mark.parametrize("machine", [*MACHINES.values(), lambda: Thinking(False, None)])
def test_white_space_without_end_is_given_on(machine: Callable[[], Machine]) -> None:
    """What is held back would be searched again with each token."""
    parting, given = machine(), 0
    for number in range(1, 100):
        given += sum(len(str(piece)) for piece in parting.feed(" " * 100))
        assert given >= 100 * number - MAX_BLANK - 100


@pytest.mark.parametrize("parse", [call_in, calls_in])
def test_calls_nested_at_pythons_limit_are_text_or_calls(parse: Callable[[str], Any]) -> None:
    for depth in range(sys.getrecursionlimit() + 10):
        parse(f'{{"name": "f", "arguments": {{"a": {"[" * depth}{"]" * depth}}}}}')


def test_a_template_without_tools_has_no_machine() -> None:
    assert parser_of("<|im_start|>user\nHello<|im_end|>") is None


@pytest.mark.parametrize("size", [1, 4, 10_000])
@pytest.mark.parametrize(
    ("opened", "text", "found"),
    [
        (False, "<think>\nA river.\n</think>\n\nBlue.", [Thought("\nA river.\n"), "Blue."]),
        (True, "A river.\n</think>\n\nBlue.", [Thought("A river.\n"), "Blue."]),
        (False, "\n<think>never </thi", [Thought("never </thi")]),
        (False, "Blue. <think>no</think>", ["Blue. <think>no</think>"]),
        (False, "<thin ice", ["<thin ice"]),
        (False, " <thin", [" <thin"]),
        (
            False,
            '<think>Call it.</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            [Thought("Call it."), Call("f", "{}")],
        ),
    ],
)
def test_thoughts_are_parted_from_the_answer(opened: bool, text: str, found: list[Any], size: int) -> None:
    assert read_by(Thinking(opened, MACHINES["hermes"]()), text, size) == found
