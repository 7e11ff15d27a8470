"""Templates and chats that cannot be rendered: every failure an answer to its caller."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.messages import MAX_DEPTH
from headrace_engine.engine.chat.template import ChatTemplate
from headrace_engine.errors import InvalidArgument
from support.models.tiny_tokenizer import CHAT_TEMPLATE
from unit.engine.chat.templates import HELLO, PARTS, TRIMMING, refused, render


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

    @pytest.mark.parametrize(
        ("chat", "field", "path"),
        [
            (Chat((HELLO,), template_variables={"v": '{"a": 1, "a": 2}'}), "chat.template_variables.v", "a"),
            (
                Chat((HELLO,), tools=("{}", '{"function": {"name": "f", "name": "g"}}')),
                "chat.tools[1]",
                "function.name",
            ),
            (
                Chat((ChatMessage("user", "x", extra_json='{"a": [{"b": 1, "b": 2}]}'),)),
                "chat.messages[0].extra_json",
                "a[0].b",
            ),
        ],
    )
    def test_a_key_given_twice_is_named_with_its_path(self, chat: Chat, field: str, path: str) -> None:
        error = refused("{{ tools }}", chat)
        assert (error.reason, [violation.field for violation in error.violations]) == ("INVALID_FIELD", [field])
        assert f"gives {path} twice" in error.message

    def test_arguments_that_a_model_wrote_may_have_a_key_twice(self) -> None:
        call = ChatMessage("assistant", tool_calls=(ToolCall("1", "f", '{"a": 1, "a": 2}'),))
        source = "{{ messages[1].tool_calls[0].function.arguments.a }}"
        assert render(source, Chat((HELLO, call))) == "2"

    def test_parts_can_be_continued(self) -> None:
        chat = Chat((ChatMessage("assistant", ("one", "two ")),), continue_final_message=True)
        assert render(PARTS, chat) == "<text>one<text>two "
