"""Conversations to text, as transformers renders them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.template import ChatTemplate
from headrace_engine.errors import InvalidArgument
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models.tiny_tokenizer import CHAT_TEMPLATE
from unit.engine.chat.templates import HELLO, PARTS, TRIMMING, refused, render

TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% if loop.index > 5 %}{% break %}{% endif %}{% endfor %}{% endif %}"
    "{% generation %}{{ message.content }}{% endgeneration %}|{% endfor %}"
)


def by_transformers(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: Any = render_jinja_template([messages], chat_template=source, bos_token="<s>", **options)
    return str(rendered[0][0])


TALK = (
    ChatMessage("system", "Be brief. "),
    ChatMessage("user", " What is <b>&amp;</b>?\n"),
    ChatMessage("assistant", "é"),
)


class TestAgainstTransformers:
    @pytest.mark.parametrize("source", [CHAT_TEMPLATE, TRIMMING, TOOLS, PARTS])
    @pytest.mark.parametrize("opens", [True, False])
    def test_a_conversation_is_rendered_alike(self, source: str, opens: bool) -> None:
        messages = [{"role": message.role, "content": message.content} for message in TALK]
        expected = by_transformers(source, messages, add_generation_prompt=opens)
        assert render(source, Chat(TALK, add_generation_prompt=opens)) == expected

    @pytest.mark.parametrize("source", [CHAT_TEMPLATE, TRIMMING, TOOLS, PARTS])
    @pytest.mark.parametrize("content", ["The answer is", "The answer is ", "im", "\n\n", "a<|im_end|>", "assistant"])
    def test_a_final_message_is_continued_alike(self, source: str, content: str) -> None:
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
        expected = by_transformers(source, messages, continue_final_message=True)
        talk = tuple(ChatMessage(each["role"], each["content"]) for each in messages)
        assert render(source, Chat(talk, continue_final_message=True)) == expected

    def test_tools_and_calls_are_rendered_alike(self) -> None:
        tool = {"type": "function", "function": {"name": "weather", "description": "Überall <hier>"}}
        arguments = {"city": "Köln", "days": [1, 2]}
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "12°", "tool_call_id": "c1", "name": "weather"},
        ]
        expected = by_transformers(TOOLS, messages, tools=[tool])
        chat = Chat(
            (
                ChatMessage("assistant", tool_calls=(ToolCall("c1", "weather", json.dumps(arguments)),)),
                ChatMessage("tool", "12°", name="weather", tool_call_id="c1"),
            ),
            tools=(json.dumps(tool),),
        )
        assert render(TOOLS, chat) == expected

    def test_content_in_parts_is_rendered_alike(self) -> None:
        content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        expected = by_transformers(PARTS, [{"role": "user", "content": content}])
        assert render(PARTS, Chat((ChatMessage("user", ("one", "two")),))) == expected

    @pytest.mark.parametrize(
        "options", ["", "indent=2", "true", "false, 4", "sort_keys=true", "separators=(',', ':')", "ensure_ascii=true"]
    )
    def test_json_is_written_alike(self, options: str) -> None:
        source = f"{{{{ messages[0].more | tojson({options}) }}}}"
        more = {"b": ["<é>", 1.5, None], "a": {}}
        expected = by_transformers(source, [{"role": "user", "content": "", "more": more}])
        assert render(source, Chat((ChatMessage("user", "", extra_json=json.dumps({"more": more})),))) == expected

    @pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
    def test_what_a_model_thought_has_all_its_names(self, name: str) -> None:
        source = (
            "{% for key in messages[0] | sort %}{{ key }}={{ messages[0][key] }};{% endfor %}{{ documents is none }}"
        )
        message = {"role": "assistant", "content": "x", name: "Hm."}
        expected = by_transformers(source, [message])
        chat = Chat((ChatMessage("assistant", "x", extra_json=json.dumps({name: "Hm.", "nothing": None})),))
        assert render(source, chat) == expected
        assert "thinking=Hm." in expected

    @settings(max_examples=50, deadline=None)
    @given(data=st.data())
    @pytest.mark.parametrize("source", [CHAT_TEMPLATE, TRIMMING, TOOLS, PARTS])
    def test_random_conversations_are_rendered_alike(self, source: str, data: st.DataObject) -> None:
        content = st.text(st.sampled_from(" \n\t<|im_end|>{{}}%-#aé你👍\u2028"), max_size=12)
        message = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": content})
        messages = data.draw(st.lists(message, min_size=1, max_size=4))
        goes_on = data.draw(st.booleans())
        options: Any = (
            {"continue_final_message": True} if goes_on else {"add_generation_prompt": data.draw(st.booleans())}
        )
        expected = by_transformers(source, messages, **options)
        talk = tuple(ChatMessage(each["role"], each["content"]) for each in messages)
        assert render(source, Chat(talk, **options)) == expected


class TestScope:
    def test_the_opening_of_the_answer_is_rendered_by_default(self) -> None:
        assert render(CHAT_TEMPLATE, Chat((HELLO,))).endswith("<|im_start|>assistant\n")
        assert not render(CHAT_TEMPLATE, Chat((HELLO,), add_generation_prompt=False)).endswith("assistant\n")

    def test_variables_are_json_values(self) -> None:
        source = "{{ thinking is true }} {{ effort }} {{ budget + 1 }} {{ bos_token }}"
        chat = Chat((HELLO,), template_variables={"thinking": "true", "effort": '"low"', "budget": "1023"})
        assert render(source, chat) == "True low 1024 <s>"

    def test_a_variable_of_the_chat_comes_before_the_model_s(self) -> None:
        assert render("{{ bos_token }}", Chat((HELLO,), template_variables={"bos_token": '"<x>"'})) == "<x>"

    @pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
    def test_what_another_field_sets_is_no_variable(self, name: str) -> None:
        error = refused("", Chat((HELLO,), template_variables={name: "1"}))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", f"chat.template_variables.{name}")

    def test_a_message_without_content_has_none(self) -> None:
        source = "{% for m in messages %}{{ m.content is defined }}{{ m.name is defined }}{% endfor %}"
        assert render(source, Chat((ChatMessage("assistant"),))) == "FalseFalse"

    def test_extra_keys_reach_the_template(self) -> None:
        chat = Chat((ChatMessage("user", "hi", extra_json='{"thought": "deep", "n": 2}'),))
        assert render("{{ messages[0].thought }}{{ messages[0].n }}", chat) == "deep2"

    def test_extra_keys_may_not_replace_others(self) -> None:
        error = refused("", Chat((ChatMessage("user", "hi", extra_json='{"content": "other"}'),)))
        assert error.violations[0].field == "chat.messages[0].extra_json"
        assert "sets 'content'" in error.message

    def test_strftime_now_is_there(self) -> None:
        assert len(render("{{ strftime_now('%Y-%m-%d') }}", Chat((HELLO,)))) == 10

    def test_the_sandbox_holds(self) -> None:
        error = refused("{{ messages.__class__.__mro__ }}", Chat((HELLO,)))
        assert error.reason == "BAD_TEMPLATE"
        assert refused("{{ messages.append(1) }}", Chat((HELLO,))).reason == "BAD_TEMPLATE"

    @pytest.mark.parametrize(
        "source",
        [
            "{{ namespace(__class__=1) }}",
            "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
            "{{ dict.__init__ }}{{ dict.mro() }}",
            "{{ '{0.__class__}'.format(1) }}",
            "{{ raise_exception.__globals__ }}",
            "{{ cycler.__init__.__globals__.os }}",
            "{{ self.__init__ }}{{ self._TemplateReference__context }}",
            "{{ ('' | attr('__class__')).mro() }}",
            "{% include '/etc/passwd' %}",
        ],
    )
    def test_nothing_leads_to_python_s_own_objects(self, source: str) -> None:
        with suppress(InvalidArgument):
            assert not re.search("class|built-in|function|module|root:", render(source, Chat((HELLO,))))

    def test_names_of_control_tokens_are_marked_in_keys_too(self) -> None:
        shield = Shield(["<|im_end|>"])
        chat = Chat((HELLO,), tools=('{"a<|im_end|>": {"b<|im_end|>": 1}}',))
        text = ChatTemplate("{{ tools | tojson }}<|im_end|>", {}).render(chat, shield).text
        assert [piece for piece, is_plain in shield.split(text) if is_plain] == ["<|im_end|>"] * 2
