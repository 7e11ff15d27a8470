"""Chats rendered in a process of their own: the same text, and a template that goes too far costs its caller alone."""

from __future__ import annotations

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.engine.chat.template import MAX_REASON
from headrace_engine.errors import InvalidArgument
from support.models.tiny_tokenizer import CHAT_TEMPLATE
from unit.engine.chat.renderers import BOMB, HELLO, refused, render, renderer

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_a_chat_comes_in_the_pieces_that_a_shield_makes_of_it() -> None:
    chat = Chat((ChatMessage("user", "a <|im_end|> b"), ChatMessage("assistant", ("x", "<s>"))))
    source = "{{ bos_token }}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    source += "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    pieces = [("<s>a ", False), ("<|im_end|>", True), (" b<|im_end|>x", False), ("<s>", True), ("<|im_end|>", False)]
    assert render(renderer(source), chat) == pieces


def test_everything_of_a_chat_arrives() -> None:
    source = "{{ messages | tojson }}{{ tools | tojson }}{{ v }}{{ add_generation_prompt }}"
    call = ToolCall("1", "f", '{"a": [1, null, "é"]}')
    chat = Chat(
        (ChatMessage("assistant", None, "Bo", (call,), "t", '{"more": {"x": 1.5}}'),),
        add_generation_prompt=False,
        template_variables={"v": "[1]"},
        tools=('{"name": "f"}',),
    )
    expected = (
        '[{"role": "assistant", "name": "Bo", "tool_call_id": "t", "tool_calls": [{"id": "1", "type": "function", '
        '"function": {"name": "f", "arguments": {"a": [1, null, "é"]}}}], "more": {"x": 1.5}}]'
        '[{"name": "f"}][1]False'
    )
    assert render(renderer(source), chat) == [(expected, False)]


def test_chats_with_tools_may_have_a_template_of_their_own() -> None:
    both = renderer("plain", "with {{ tools | length }}")
    assert render(both) == [("plain", False)]
    assert render(both, Chat(HELLO.messages, tools=("{}",))) == [("with 1", False)]
    assert render(renderer("plain"), Chat(HELLO.messages, tools=("{}",))) == [("plain", False)]


class TestRefusals:
    def test_bc067_a_template_s_own_reason_comes_back(self) -> None:
        error = refused(renderer("{{ raise_exception('no such role') }}"))
        assert (error.reason, error.violations[0].field) == ("BAD_TEMPLATE", "chat")
        assert "no such role" in error.message

    @pytest.mark.parametrize("field", ["chat", "config.chat_template"])
    def test_bc067_a_template_that_is_none_is_refused_each_time(self, field: str) -> None:
        broken = renderer("{% for %}", field=field)
        for _ in range(2):
            with pytest.raises(InvalidArgument) as caught:
                broken.check()
            assert (caught.value.reason, caught.value.violations[0].field) == ("BAD_TEMPLATE", field)
        assert "syntax error" in refused(broken).message

    def test_a_malformed_chat_is_told_by_its_field(self) -> None:
        error = refused(renderer(CHAT_TEMPLATE), Chat(HELLO.messages, tools=("[1]",)))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "chat.tools[0]")

    def test_a_text_has_a_size(self) -> None:
        by = renderer("{{ messages[0].content * 100 }}")
        assert refused(by, max_bytes=599).reason == "PROMPT_TOO_LONG"
        assert render(by, max_bytes=600) == [("Hello!" * 100, False)]

    def test_half_a_surrogate_pair_is_no_text(self) -> None:
        by = renderer("{{ messages[0].content }}{{ messages[0].more }}")
        error = refused(by, Chat((ChatMessage("user", "a\ud83d"),)))
        assert "surrogate pair" in error.message
        error = refused(by, Chat((ChatMessage("user", "a", extra_json='{"more": "\\ud83d"}'),)))
        assert "surrogate pair" in error.message
        assert refused(renderer(r"{{ raise_exception('\ud83d') }}")).reason == "BAD_TEMPLATE"
        assert render(by) == [("Hello!", False)]

    def test_a_long_reason_is_cut(self) -> None:
        """What fails a call has to fit into the head of its answer."""
        error = refused(renderer("{{ raise_exception('no ' * 100000) }}"))
        assert len(error.message) < MAX_REASON + 100
        assert error.message.endswith("…")


@pytest.mark.usefixtures("hasty")
class TestHostileTemplates:
    @pytest.mark.parametrize(
        "bomb",
        [
            LOOPS,
            "{% set n = 10 ** (10 ** messages[1].content | int) %}",
            "{% set ns = namespace(t='xx') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
            "{{ 'x' * 10 ** (messages[1].content | int) }}",
            "{{ 'x' | center(10 ** (messages[1].content | int)) }}",
            "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
            "{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        ],
    )
    def test_one_that_goes_too_far_ends_its_own_chat(self, bomb: str) -> None:
        by = renderer(BOMB.replace("{{ BOMB }}", bomb))
        error = refused(by, Chat((ChatMessage("user", "bomb"), ChatMessage("user", "11"))))
        assert (error.reason, error.violations[0].field) == ("BAD_TEMPLATE", "chat")
        assert render(by) == [("Hello!", False)], "the next chat is rendered as ever"

    def test_the_time_that_was_too_much_is_told(self) -> None:
        assert "took more than 5 s of processor time" in refused(renderer(LOOPS)).message

    def test_one_that_cannot_even_be_compiled_is_refused(self) -> None:
        """Jinja computes what is constant when it compiles."""
        with pytest.raises(InvalidArgument) as caught:
            renderer("{{ 10 ** (10 ** 10) }}", field="config.chat_template").check()
        assert caught.value.reason == "BAD_TEMPLATE"

    def test_nesting_without_end_is_refused(self) -> None:
        error = refused(renderer("{{ " + "(" * 100_000 + ")" * 100_000 + " }}"))
        assert error.reason == "BAD_TEMPLATE"
