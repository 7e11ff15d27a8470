"""What a chat says reaches the text in whichever form a template takes it, or is named where it does not."""

from __future__ import annotations

import json

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.template import ChatTemplate, Rendered
from headrace_engine.errors import InvalidArgument

SENT = '{"city": "Bern",  "days": 2}'
"""JSON as no library would write it."""
CALLS = (
    "{% for m in messages %}{% for t in m.tool_calls or [] %}{% set a = t.function.arguments %}"
    "SHOW{% endfor %}{% endfor %}"
)


def rendered(source: str, *messages: ChatMessage, **fields: object) -> Rendered:
    return ChatTemplate(source, {}).render(Chat(messages, **fields))  # type: ignore[arg-type]


def with_call(arguments: str = SENT, content: str | None = None) -> ChatMessage:
    return ChatMessage("assistant", content, tool_calls=(ToolCall("1", "weather", arguments),))


class TestArguments:
    @pytest.mark.parametrize(
        ("show", "text"),
        [
            ("{{ '<call>' + a }}", f"<call>{SENT}"),
            ("{{ a + '</call>' }}", f"{SENT}</call>"),
            ("{{ '<' ~ a ~ '>' }}", f"<{SENT}>"),
            ("{{ a }}", SENT),
            ("{{ a | string }}", SENT),
            ("{{ '%s' | format(a) }}", SENT),
            ("{{ a | tojson }}", json.dumps(json.loads(SENT))),
            ("{% for key, value in a.items() %}{{ key }}={{ value }};{% endfor %}", "city=Bern;days=2;"),
            ("{% for key in a %}{{ key }}={{ a[key] }};{% endfor %}", "city=Bern;days=2;"),
            ("{{ a.city }}", "Bern"),
            ("{{ a | length }}{{ a is mapping }}{{ a is string }}", "2TrueFalse"),
            ("{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}", json.dumps(json.loads(SENT))),
            ("{{ (a | items | list)[0][0] }}", "city"),
        ],
    )
    def test_n02_read_as_a_mapping_and_as_text(self, show: str, text: str) -> None:
        assert rendered(CALLS.replace("SHOW", show), with_call()).text == text

    def test_n02_the_example_of_a_template_that_appends_them(self) -> None:
        source = (
            "{% for m in messages %}{% if m.tool_calls is defined %}{% for t in m.tool_calls %}"
            "{{ '<call>' + t['function']['arguments'] }}{% endfor %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
        )
        assert rendered(source, ChatMessage("user", "Hi"), with_call()).text == f"Hi<call>{SENT}"

    def test_n02_names_of_special_tokens_in_them_stay_text(self) -> None:
        shield = Shield(["<|im_end|>"])
        chat = Chat((with_call('{"a": "<|im_end|>"}'),))
        text = ChatTemplate(CALLS.replace("SHOW", "{{ 'x' + a }}"), {}).render(chat, shield).text
        assert shield.split(text) == [('x{"a": "', False), ("<|im_end|>", True), ('"}', False)]

    @pytest.mark.parametrize("key", ["text", "changed", "items", "values", "_json_text"])
    def test_n02_an_argument_may_have_any_name(self, key: str) -> None:
        found = rendered(
            CALLS.replace("SHOW", f"{{{{ a['{key}'] }}}}{{{{ a | tojson }}}}"), with_call(f'{{"{key}": "v"}}')
        )
        assert f'{{"{key}": "v"}}' in found.text


TWO = ChatMessage("user", ("PARTONE", "PARTTWO"))
STRINGS_ONLY = "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}"


class TestParts:
    @pytest.mark.parametrize(
        "source",
        [
            STRINGS_ONLY,
            "{{ messages[0].content[0]['text'] }}",
            "{% for p in messages[0].content %}{% if loop.first %}{{ p.text }}{% endif %}{% endfor %}",
            "{{ messages[0].content.strip() }}",
            "{{ 'user: ' + messages[0].content }}",
            "{% if 'PARTTWO' in messages[0].content %}{{ messages[0].content }}{% endif %}",
            "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}{{ bad() }}{% endif %}",
        ],
    )
    def test_n03_none_is_lost(self, source: str) -> None:
        found = rendered(source, TWO)
        assert "PARTONE\nPARTTWO" in found.text
        assert [warning.field for warning in found.warnings] == ["chat.messages[0].content"]
        assert "joined with line breaks" in found.warnings[0].message

    def test_n03_parts_stay_parts_where_a_template_shows_them(self) -> None:
        found = rendered("{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}", TWO)
        assert found == Rendered("<PARTONE><PARTTWO>")

    def test_n03_each_message_has_the_form_that_the_template_takes(self) -> None:
        source = (
            "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}<{{ p.text }}>{% endfor %}"
            "{% elif m.content is string %}[{{ m.content }}]{% endif %}{% endfor %}"
        )
        found = rendered(source, ChatMessage("system", ("A", "B")), TWO)
        assert found.text == "[A\nB]<PARTONE><PARTTWO>"

    def test_n03_text_becomes_a_part_where_a_template_wants_parts(self) -> None:
        source = "{% for p in messages[0].content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
        assert rendered(source, ChatMessage("user", "Hello")) == Rendered("Hello")

    def test_n03_parts_of_a_final_message_can_be_continued(self) -> None:
        for source in (STRINGS_ONLY, "{{ messages[0].content }}"):
            found = rendered(source, ChatMessage("assistant", ("one", "two")), continue_final_message=True)
            assert found.text.endswith("one\ntwo")

    def test_n03_template_errors_about_the_sent_form_are_reported(self) -> None:
        with pytest.raises(InvalidArgument, match="only users"):
            rendered("{{ raise_exception('only users') }}", TWO)


class TestLeftOut:
    def test_n03_a_role_without_a_branch_is_named(self) -> None:
        source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
        messages = (ChatMessage("system", "SYSTEM"), ChatMessage("user", "Hi"), ChatMessage("tool", "RESULT"))
        found = rendered(source, *messages)
        assert found.text == "Hi"
        fields = ["chat.messages[0].content", "chat.messages[2].content"]
        assert [warning.field for warning in found.warnings] == fields
        assert found.warnings[0].message == f"{fields[0]} has no effect: the model's chat template leaves it out"

    def test_n03_calls_that_are_left_out_are_named(self) -> None:
        found = rendered("{{ messages[0].content }}", ChatMessage("user", "Hi"), with_call())
        path = "chat.messages[1].tool_calls[0]"
        assert [warning.field for warning in found.warnings] == [f"{path}.name", f"{path}.arguments_json"]

    @pytest.mark.parametrize(
        ("source", "content"),
        [
            ("{{ messages[0].content | trim }}", "  spaces \n"),
            ("{{ messages[0].content | upper }}", "changed"),
            ("{{ messages[0].content.split('</think>')[-1] }}", "<think>hm</think>answer"),
            ("{{ messages[0].content | tojson }}", 'quoted "text"\n'),
            ("{{ messages[0].role }}", "  \n"),
            ("{{ messages[1].content }}{{ messages[0].content }}", "first"),
        ],
    )
    def test_n03_what_is_changed_or_empty_is_not_left_out(self, source: str, content: str) -> None:
        assert rendered(source, ChatMessage("user", content), ChatMessage("assistant", "")).warnings == ()

    def test_n03_the_same_text_elsewhere_does_not_hide_it(self) -> None:
        found = rendered("{{ messages[0].content }}", ChatMessage("user", "Hi"), ChatMessage("user", "Hi"))
        assert [warning.field for warning in found.warnings] == ["chat.messages[1].content"]

    def test_n03_many_are_counted(self) -> None:
        found = rendered("{{ messages[0].content }}", *[ChatMessage("user", f"text {n}") for n in range(500)])
        assert len(found.warnings) == 21
        assert found.warnings[-1].message.endswith("leaves out 479 more")
