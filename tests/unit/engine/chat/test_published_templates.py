"""Published chat templates: the text that transformers makes, in whichever form a template takes what a chat says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.engine.chat.template import ChatTemplate
from headrace_engine.errors import InvalidArgument
from support.models.template_corpus import collected, committed

TEMPLATES = committed()
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
ARGUMENTS = '{"city": "Bern"}'
TOOL = json.dumps({
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "where"}}},
    },
})  # fmt: skip


def _talk(*output: tuple[str, str]) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role, text) for role, text in output)


def _with_call(content: str | None) -> Chat:
    call = ChatMessage("assistant", content, tool_calls=(ToolCall("call12345", "get_weather", ARGUMENTS),))
    answer = ChatMessage("tool", '{"degrees": 3}', tool_call_id="call12345")
    return Chat((*_talk(("user", "QUESTION one")), call, answer, *_talk(("user", "QUESTION two"))), tools=(TOOL,))


_MULTI = (("user", "QUESTION one"), ("assistant", "ANSWER one"), ("user", "QUESTION two"))
CHATS = {
    "one": Chat(_talk(_MULTI[0])),
    "several": Chat(_talk(*_MULTI)),
    "system": Chat(_talk(("system", "SYSTEM text"), *_MULTI)),
    "thought": Chat(_talk(_MULTI[0], ("assistant", "<think>\nhm\n</think>\n\nANSWER one"), _MULTI[2])),
    "tools": _with_call(None),
    "tools beside a text": _with_call(""),
}


def in_parts(chat: Chat) -> Chat:
    """The same chat with each content in two parts."""
    messages = [
        ChatMessage(each.role, (f"{each.content} PARTONE", f"{each.role} PARTTWO")) if each.content else each
        for each in chat.messages
    ]
    return Chat(tuple(messages))


def their_texts(template: str, chat: Chat) -> list[str]:
    """What transformers makes of a chat, with arguments as mappings and as texts, where it makes anything."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts = []
    tools = [json.loads(tool) for tool in chat.tools] or None
    for read in (json.loads, str):
        messages = [_as_openai(message, read) for message in chat.messages]
        try:
            found, _ = render_jinja_template(
                [messages], tools=tools, chat_template=template, add_generation_prompt=True, **NAMES
            )
        except Exception:  # whatever a template raises
            continue
        texts += found
    return texts


def _as_openai(message: ChatMessage, read: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role}
    if message.content is not None:
        shown["content"] = message.content
    if message.tool_calls:
        functions = [{"name": call.name, "arguments": read(call.arguments_json)} for call in message.tool_calls]
        pairs = zip(message.tool_calls, functions, strict=True)
        shown["tool_calls"] = [{"id": call.id, "type": "function", "function": each} for call, each in pairs]
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def our_text(template: str, chat: Chat) -> tuple[str, Mapping[str, str]] | None:
    """What we make of it, with what it leaves out by field; None: nothing."""
    try:
        found = ChatTemplate(template, NAMES).render(chat)
    except InvalidArgument:
        return None
    return found.text, {each.field: each.message for each in found.warnings if "leaves" in each.message}


def check_text(template: str, chat: Chat) -> None:
    """It is transformers' text in one of its forms, unless that leaves out what somebody said."""
    theirs, ours = their_texts(template, chat), our_text(template, chat)
    if ours is None:
        assert theirs == []
        return
    contents = [_last(message.content) for message in chat.messages if isinstance(message.content, str)]
    whole = [text for text in theirs if all(content in text for content in contents)]
    assert ours[0] in theirs or whole == []


def _last(content: str) -> str:
    """What follows a thought: templates may leave that out of earlier answers."""
    return content.rpartition("</think>")[2].strip()


def check_parts(template: str, chat: Chat) -> None:
    """Each part is shown, or named; a chat that is rendered as text is rendered in parts too."""
    parts = in_parts(chat)
    joined = Chat(tuple(ChatMessage(each.role, "\n".join(each.content or ())) for each in parts.messages))
    as_text, as_parts = our_text(template, joined), our_text(template, parts)
    if as_parts is None:
        assert as_text is None
        return
    text, left_out = as_parts
    for number, message in enumerate(parts.messages):
        for part in message.content or ():
            reported = any(field.startswith(f"chat.messages[{number}].content") for field in left_out)
            assert _last(part) in text or reported, (part, text)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_n02_published_templates_give_the_text_of_transformers(name: str, chat: str) -> None:
    check_text(TEMPLATES[name], CHATS[chat])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", ["one", "several", "system"])
def test_n03_published_templates_show_every_part(name: str, chat: str) -> None:
    check_parts(TEMPLATES[name], CHATS[chat])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_n03_all_public_templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    templates = collected(tmp_path_factory.mktemp("templates"))
    assert len(templates) >= 160
    assert set(TEMPLATES.values()) <= set(templates.values())
    for template in templates.values():
        for name, chat in CHATS.items():
            check_text(template, chat)
            if "tools" not in name:
                check_parts(template, chat)


def test_n02_a_published_template_that_appends_arguments() -> None:
    """Those of DeepSeek V3.1 cannot be rendered from a mapping at all."""
    found = our_text(TEMPLATES["deepseek-ai-DeepSeek-V3.1"], CHATS["tools beside a text"])
    assert found is not None
    assert f"get_weather<｜tool▁sep｜>{ARGUMENTS}" in found[0]


def test_n03_text_is_a_part_where_a_template_wants_parts() -> None:
    """Transformers makes a prompt without the question of it."""
    chat, template = CHATS["one"], TEMPLATES["trl-smolvlm"]
    assert "QUESTION" not in their_texts(template, chat)[0]
    assert our_text(template, chat) == ("<|im_start|>User: QUESTION one<end_of_utterance>\nAssistant:", {})
