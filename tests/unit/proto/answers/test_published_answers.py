"""Answers of models, and what llama.cpp's (tests/test-chat.cpp) and vLLM's (tests/tool_parsers) tests find in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace_proto.pure.answers.pieces import Thought
from support.parted import parted

ONE = ("special_function", '{"arg1": 1}')
TWO = ("special_function_with_opt", '{"arg1": 1, "arg2": 2}')
CITY = ("get_time", '{"city": "XYZCITY"}')
THOUGHT, HELLO = Thought("I'm\nthinking"), "Hello, world!\nWhat's up?"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
WEATHER = ("get_weather", '{"city": "Tokyo"}')

JSON: list[tuple[str, str, str, list[Any]]] = [
    ("hermes", "", '<tool_call>\n{"name": "special_function", "arguments": {"arg1": 1}}</tool_call>', [ONE]),
    (
        "hermes",
        "",
        f'{HELLO}<tool_call>\n{{"name": "special_function", "arguments": {{"arg1": 1}}}}</tool_call>',
        [HELLO, ONE],
    ),
    ("phi4_functools", "", 'functools[{"name": "get_weather", "arguments": {"city": "Tokyo"}}]', [WEATHER]),
    ("phi4_functools", "", "functools[] This is just text", ["functools[] This is just text"]),
    ("phi4_functools", "", "functools[ This is just text ]", ["functools[ This is just text ]"]),
    (
        "command_r7b",
        "command",
        "<|START_THINKING|>I'm\nthinking<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "special_function", "parameters": {"arg1": 1}}\n]<|END_ACTION|>',
        [THOUGHT, ONE],
    ),
    (
        "command_r7b",
        "command",
        f"<|START_THINKING|>I'm\nthinking<|END_THINKING|><|START_RESPONSE|>{HELLO}<|END_RESPONSE|>",
        [THOUGHT, HELLO],
    ),
    ("functionary_v31", "", '<function=special_function>{"arg1": 1}</function>', [ONE]),
    ("functionary_v32", "", 'special_function\n{"arg1": 1}', [ONE]),
    ("functionary_v32", "", f"all\n{HELLO}", [HELLO]),
    (
        "deepseek_v3",
        "think",
        "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>special_function\n"
        '```json\n{"arg1": 1}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [ONE],
    ),
    (
        "deepseek_v31",
        "think",
        "REASONING</think>CONTENT<｜tool▁calls▁begin｜>"
        + V31.format("get_time", '{"city": "Paris"}')
        + V31.format("get_weather", '{"city": "Paris"}')
        + "<｜tool▁calls▁end｜>",
        [Thought("REASONING"), "CONTENT", ("get_time", '{"city": "Paris"}'), ("get_weather", '{"city": "Paris"}')],
    ),
    (
        "kimi_k2",
        "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.special_function:0<|tool_call_argument_begin|>"
        '{"arg1": 1}<|tool_call_end|><|tool_calls_section_end|>',
        [ONE],
    ),
]

PARAMETERS: list[tuple[str, str, str, list[Any]]] = [
    (
        "deepseek_dsml",
        "think",
        'Let me check the time</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n'
        '<｜DSML｜parameter name="city" string="true">XYZCITY</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [Thought("Let me check the time"), CITY],
    ),
    (
        "glm45",
        "",
        "<tool_call>special_function\n<arg_key>arg1</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        [ONE],
    ),
    (
        "glm45",
        "think",
        "I'm\nthinking</think><tool_call>special_function<arg_key>arg1</arg_key><arg_value>1</arg_value></tool_call>",
        [THOUGHT, ONE],
    ),
    (
        "glm45",
        "think",
        "Let me read the diff content.</think><tool_call>read_file_diff_md</tool_call>",
        [Thought("Let me read the diff content."), ("read_file_diff_md", "{}")],
    ),
    (
        "qwen3_coder",
        "",
        "Let me call it.\n<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>",
        ["Let me call it.\n", ONE],
    ),
    (
        "qwen3_coder",
        "",
        "<tool_call>\n<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=special_function_with_opt>\n<parameter=arg1>\n1\n</parameter>\n"
        "<parameter=arg2>\n2\n</parameter>\n</function>\n</tool_call>",
        [ONE, TWO],
    ),
    (
        "seed_oss",
        "seed",
        "<seed:think>I'm\nthinking</seed:think>\n<seed:tool_call>\n<function=special_function>\n"
        "<parameter=arg1>1</parameter>\n</function>\n</seed:tool_call>",
        [THOUGHT, ONE],
    ),
    (
        "seed_oss",
        "",
        "<seed:tool_call>\n<function=edit>\n<parameter=oldString>"
        'def foo(arg = "14"):\n    return arg + "bar"\n</parameter>\n</function>\n</seed:tool_call>',
        [("edit", '{"oldString": "def foo(arg = \\"14\\"):\\n    return arg + \\"bar\\"\\n"}')],
    ),
    (
        "qwen3_coder",
        "",
        "<tool_call>\n<function=python>\n<parameter=code>\ndef hello():\n"
        '    print("Hello, world!")\n\nhello()\n</parameter>\n</function>\n</tool_call>',
        [("python", '{"code": "def hello():\\n    print(\\"Hello, world!\\")\\n\\nhello()"}')],
    ),
]

CHANNELS: list[tuple[str, str, str, list[Any]]] = [
    ("harmony", "", f"<|channel|>final<|message|>{HELLO}", [HELLO]),
    ("harmony", "", f"<|channel|>commentary<|message|>{HELLO}", [HELLO]),
    (
        "harmony",
        "",
        f"<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant<|channel|>final<|message|>{HELLO}",
        [THOUGHT, HELLO],
    ),
    ("harmony", "", ' to=functions.special_function<|channel|>analysis<|message|>{"arg1": 1}', [ONE]),
    ("harmony", "", '<|channel|>analysis to=functions.special_function<|message|>{"arg1": 1}', [ONE]),
    (
        "harmony",
        "",
        ' to=functions.special_function<|channel|>analysis <|constrain|>json<|message|>{"arg1": 1}',
        [ONE],
    ),
    (
        "harmony",
        "",
        "<|channel|>analysis<|message|>I'm\nthinking<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.special_function <|constrain|>json<|message|>{"arg1": 1}',
        [THOUGHT, ONE],
    ),
    (
        "harmony",
        "",
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>I'm\nthinking<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{HELLO}",
        [THOUGHT, HELLO],
    ),
]

LITERALS: list[tuple[str, str, str, list[Any]]] = [
    ("gemma4", "gemma4", f"<|channel>thought\nI'm\nthinking<channel|>{HELLO}", [THOUGHT, HELLO]),
    ("gemma4", "gemma4", f"<|channel>thought<channel|>{HELLO}", [HELLO]),
    (
        "gemma4",
        "",
        f'{HELLO}<|tool_call>call:get_time{{city:<|"|>XYZCITY<|"|>}}<tool_call|>',
        [HELLO, CITY],
    ),
    ("gemma4", "", "<|tool_call>call:empty_args{}<tool_call|>", [("empty_args", "{}")]),
    ("gemma4", "", "<|tool_call>call:amount{orig:3.14}<tool_call|>", [("amount", '{"orig": 3.14}')]),
    ("gemma4", "", "<|tool_call>call:toggle{enabled:true}<tool_call|>", [("toggle", '{"enabled": true}')]),
    (
        "functiongemma",
        "",
        "<start_function_call>call:get_time{city:<escape>XYZCITY<escape>}<end_function_call>",
        [CITY],
    ),
    ("lfm2", "", '<|tool_call_start|>[get_time(city="XYZCITY")]<|tool_call_end|>', [CITY]),
    (
        "lfm2",
        "",
        '<|tool_call_start|>[set_config(config={"enabled": true, "note": null})]<|tool_call_end|>',
        [("set_config", '{"config": {"enabled": true, "note": null}}')],
    ),
    (
        "lfm2",
        "",
        '<|tool_call_start|>[python(code="First line\\nSecond line\\tindented")]<|tool_call_end|>',
        [("python", '{"code": "First line\\nSecond line\\tindented"}')],
    ),
    (
        "lfm2",
        "think",
        "<think>I'm\nthinking</think><|tool_call_start|>[special_function(arg1=1), "
        "special_function_with_opt(arg1=1, arg2=2)]<|tool_call_end|>",
        [THOUGHT, ONE, TWO],
    ),
    (
        "pythonic",
        "",
        "<|python_start|>[register_user(name='Doe', age=9, address={'city': 'LA', 'state': 'CA'}, role=None, "
        "passed_test=True, aliases=['John', 'Johnny'])]",
        [
            (
                "register_user",
                '{"name": "Doe", "age": 9, "address": {"city": "LA", "state": "CA"}, "role": null, '
                '"passed_test": true, "aliases": ["John", "Johnny"]}',
            )
        ],
    ),
    (
        "pythonic",
        "",
        r"[get_weather(city='Martha\'s Vineyard', metric='\"cool units\"')]",
        [("get_weather", '{"city": "Martha\'s Vineyard", "metric": "\\"cool units\\""}')],
    ),
    ("pythonic", "", "How can I help you today?", ["How can I help you today?"]),
]


@pytest.mark.parametrize("size", [0, 1, 3, 7])
@pytest.mark.parametrize(("calls", "thoughts", "text", "found"), [*JSON, *PARAMETERS, *CHANNELS, *LITERALS])
def test_published_answers_are_parted(calls: str, thoughts: str, text: str, found: list[Any], size: int) -> None:
    """A format's thought is opened by the prompt where the text has only its end."""
    opened = thoughts in ("think",) and "<think>" not in text
    assert parted(calls, text, thoughts, opened=opened, size=size) == found
    for part in found:
        if isinstance(part, tuple):
            assert isinstance(json.loads(part[1]), dict)
