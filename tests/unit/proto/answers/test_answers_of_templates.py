"""Calls, as published templates write those of a conversation, come back from the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from headrace_proto.pure.answers.choice import calls_of, opens_thought, thoughts_of
from support.parted import parted

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


def rendered(name: str, messages: list[Any], *, as_text: bool, **more: Any) -> str:
    """What a published template makes of a conversation with a tool."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "today"}
    template = environment.from_string(source(name))
    return template.render(messages=messages, tools=[TOOL], bos_token="<s>", eos_token="</s>", **more)


def source(name: str) -> str:
    """The template itself."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def calling(name: str, begin: str, end: str, *, as_text: bool) -> str:
    """The text by which the template lets the assistant make two calls."""
    calls = [
        {
            "id": f"call{number}abcd",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments,
            },
        }
        for number, arguments in enumerate(ARGUMENTS)
    ]
    before = rendered(name, [USER], as_text=as_text)
    whole = rendered(name, [USER, {"role": "assistant", "content": "", "tool_calls": calls}], as_text=as_text)
    assert whole.startswith(before)
    text = whole[len(before) :].rstrip().partition(end)[0]
    return text.partition(begin)[2] if begin else text


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize(
    ("template", "calls", "thoughts", "begin", "end", "as_text"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "hermes", "think", "<|im_start|>assistant\n", "<|im_end|>", False),
        ("Qwen-Qwen3-0.6B", "hermes", "think", "<|im_start|>assistant\n", "<|im_end|>", False),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", "think", "", "</s>", False),
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral", "think", "", "</s>", False),
        ("unsloth-mistral-Devstral-Small-2507", "mistral", "think", "", "</s>", False),
        ("GLM-4.6", "glm45", "think", "<|assistant|>\n", "<|user|>", False),
        ("ByteDance-Seed-OSS", "seed_oss", "seed", "<seed:bos>assistant\n", "<seed:eos>", False),
        ("deepseek-ai-DeepSeek-V3.1", "deepseek_v31", "think", "<｜Assistant｜><think></think>", "<｜end▁of", False),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", "think", "<｜Assistant｜>", "<｜end▁of", False),
        ("meetkai-functionary-medium-v3.2", "functionary_v32", "think", "<|end_header_id|>\n\n", "<|eot_id|>", True),
        ("unsloth-Apriel-1.5", "apriel", "think", "<|assistant|>\n", "<|end|>", False),
    ],
)
def test_calls_of_published_templates_come_back(
    template: str, calls: str, thoughts: str, begin: str, end: str, *, as_text: bool, size: int
) -> None:
    assert (calls_of(source(template)), thoughts_of(source(template))) == (calls, thoughts)
    found = parted(calls, calling(template, begin, end, as_text=as_text), thoughts, size=size)
    names = [part for part in found if isinstance(part, tuple)]
    assert [(name, json.loads(arguments)) for name, arguments in names] == [("get_weather", one) for one in ARGUMENTS]
    assert len(names) == len(found)


@pytest.mark.parametrize(("name", "opened"), [("Qwen-Qwen3-0.6B", False), ("GLM-4.6", False), ("deepseek", True)])
def test_prompts_show_whether_a_thought_is_open(name: str, opened: bool) -> None:
    prompt = "<｜User｜>Hi<｜Assistant｜><think>\n" if opened else rendered(name, [USER], as_text=False)
    assert opens_thought("think", prompt) is opened


def test_templates_without_tools_have_no_format() -> None:
    assert calls_of(source("microsoft-Phi-3.5-mini-instruct")) == ""
    assert calls_of("<|im_start|>user\nHello<|im_end|>") == ""
