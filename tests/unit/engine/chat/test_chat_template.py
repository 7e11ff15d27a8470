"""Conversations to text, as transformers renders them, and every failure an answer to its caller."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.messages import MAX_DEPTH
from headrace_engine.engine.chat.template import ChatTemplate
from headrace_engine.errors import InvalidArgument
from headrace_engine.request_types import Chat, ChatMessage, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models.tiny_models import CHAT_TEMPLATE

HELLO = ChatMessage("user", "Hello!")
TRIMMING = (
    "{{ bos_token }}{%- for message in messages %}[{{ message.role }}] {{ message.content | trim }}\n{% endfor -%}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% if loop.index > 5 %}{% break %}{% endif %}{% endfor %}{% endif %}"
    "{% generation %}{{ message.content }}{% endgeneration %}|{% endfor %}"
)
PARTS = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}<{{ part.type }}>{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)


def render(source: str, chat: Chat, variables: Mapping[str, str] | None = None) -> str:
    return ChatTemplate(source, variables or {"bos_token": "<s>"}).render(chat).text


def refused(source: str, chat: Chat, shield: Shield | None = None) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        ChatTemplate(source, {}).render(chat, shield)
    return caught.value


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


class TestBadTemplates:
    def test_bc067_a_template_that_refuses_gives_its_own_reason(self) -> None:
        source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}ok"
        error = refused(source, Chat((ChatMessage("system", "x"),)))
        assert (error.reason, error.violations[0].field) == ("BAD_TEMPLATE", "chat")
        assert "no system role here" in error.message
        assert render(source, Chat((HELLO,))) == "ok"

    def test_bc067_a_broken_template_is_told_with_its_line(self) -> None:
        with pytest.raises(InvalidArgument) as caught:
            ChatTemplate("{{ messages }}\n{% for %}", {})
        assert caught.value.reason == "BAD_TEMPLATE"
        assert "line 2" in caught.value.message

    def test_the_field_to_blame_is_the_caller_s(self) -> None:
        with pytest.raises(InvalidArgument) as caught:
            ChatTemplate("{{", {}, "config.chat_template")
        assert caught.value.violations[0].field == "config.chat_template"

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[7].content }}",
            "{{ 1 / 0 }}",
            "{{ messages[0].content + 1 }}",
            "{{ undefined_function() }}",
            "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
            "{{ range(10 ** 9) | list }}",
        ],
    )
    def test_bc067_whatever_a_template_raises_is_told(self, source: str) -> None:
        error = refused(source, Chat((HELLO,)))
        assert error.reason == "BAD_TEMPLATE"
        assert error.message.startswith("chat cannot be rendered: the chat template failed: ")

    @pytest.mark.parametrize(
        "source", [CHAT_TEMPLATE, TRIMMING, "{{ messages[0].content }}", "{{ 'a' ~ messages[0].content }}"]
    )
    def test_a_template_for_plain_texts_shows_no_python_list(self, source: str) -> None:
        found = ChatTemplate(source, {"bos_token": "<s>"}).render(Chat((ChatMessage("user", ("one", "two")),)))
        assert "one\ntwo" in found.text
        assert [warning.field for warning in found.warnings] == ["chat.messages[0].content"]
        assert "joined with line breaks" in found.warnings[0].message

    def test_its_reason_is_readable_where_it_quotes_a_special_token(self) -> None:
        source = "{{ raise_exception('unknown role ' + messages[0].role) }}"
        error = refused(source, Chat((ChatMessage("<|im_end|>", "x"),)), Shield(["<|im_end|>"]))
        assert error.message.endswith("unknown role <|im_end|>")


class TestBadChats:
    def test_no_message(self) -> None:
        assert refused(CHAT_TEMPLATE, Chat(())).violations[0].field == "chat.messages"

    def test_no_role(self) -> None:
        error = refused(CHAT_TEMPLATE, Chat((HELLO, ChatMessage("", "x"))))
        assert error.violations[0].field == "chat.messages[1].role"

    def test_opening_an_answer_contradicts_continuing_one(self) -> None:
        error = refused(CHAT_TEMPLATE, Chat((HELLO,), add_generation_prompt=True, continue_final_message=True))
        assert error.violations[0].field == "chat.add_generation_prompt"

    def test_only_a_text_can_be_continued(self) -> None:
        error = refused(CHAT_TEMPLATE, Chat((HELLO, ChatMessage("assistant")), continue_final_message=True))
        assert error.violations[0].field == "chat.continue_final_message"

    @pytest.mark.parametrize("content", ["5", "true", "0", '["x"]', '{"a": 1}', '[{"text": 5}]', '[{"type": "image"}]'])
    def test_content_of_another_shape_cannot_be_continued(self, content: str) -> None:
        final = ChatMessage("assistant", extra_json=f'{{"content": {content}}}')
        error = refused(PARTS, Chat((HELLO, final), continue_final_message=True))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "chat.continue_final_message")

    def test_parts_of_extra_json_can_be_continued(self) -> None:
        final = ChatMessage("assistant", extra_json='{"content": [{"type": "text", "text": "Well"}]}')
        assert render(PARTS, Chat((final,), continue_final_message=True)) == "<text>Well"

    @pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 600, 900, 2000, 100_000])
    @pytest.mark.parametrize(
        "nest", [lambda depth: "[" * depth + "]" * depth, lambda depth: '{"a":' * depth + "1" + "}" * depth]
    )
    def test_json_too_deep_is_refused_with_its_field_and_the_limit(
        self, nest: Callable[[int], str], depth: int
    ) -> None:
        text = f'{{"a": {nest(depth - 1)}}}'
        for chat, field in (
            (Chat((HELLO,), tools=("{}", text)), "chat.tools[1]"),
            (Chat((ChatMessage("user", "x", extra_json=text),)), "chat.messages[0].extra_json"),
            (Chat((HELLO,), template_variables={"v": text}), "chat.template_variables.v"),
        ):
            error = refused("{{ tools }}", chat)
            assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", field)
            assert f"more than {MAX_DEPTH} deep" in error.message

    def test_json_as_deep_as_allowed_is_rendered(self) -> None:
        text = '{"a": ' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
        assert render("{{ tools[0] | tojson }}", Chat((HELLO,), tools=(text,))) == text

    def test_a_template_hiding_the_final_message_cannot_continue_it(self) -> None:
        error = refused("{{ messages[0].content }}", Chat((HELLO, HELLO), continue_final_message=True))
        assert (error.reason, "does not show the final message" in error.message) == ("BAD_TEMPLATE", True)

    @pytest.mark.parametrize(
        ("chat", "field"),
        [
            (Chat((HELLO,), template_variables={"v": "{"}), "chat.template_variables.v"),
            (Chat((HELLO,), template_variables={"v": ""}), "chat.template_variables.v"),
            (Chat((HELLO,), tools=("{}", "[1]")), "chat.tools[1]"),
            (Chat((HELLO,), tools=("{",)), "chat.tools[0]"),
            (Chat((HELLO,), tools=("[" * 100_000,)), "chat.tools[0]"),
            (Chat((ChatMessage("user", "x", extra_json="[]"),)), "chat.messages[0].extra_json"),
            (
                Chat((HELLO, ChatMessage("assistant", tool_calls=(ToolCall("1", "f", "{}"), ToolCall("2", "f", "7"))))),
                "chat.messages[1].tool_calls[1].arguments_json",
            ),
        ],
    )
    def test_what_is_no_json_is_named(self, chat: Chat, field: str) -> None:
        error = refused("{{ tools }}", chat)
        assert (error.reason, [violation.field for violation in error.violations]) == ("INVALID_FIELD", [field])

    def test_parts_can_be_continued(self) -> None:
        chat = Chat((ChatMessage("assistant", ("one", "two ")),), continue_final_message=True)
        assert render(PARTS, chat) == "<text>one<text>two "
