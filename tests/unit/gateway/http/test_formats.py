"""Response formats over HTTP: nothing beside them is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_gateway.http.bodies import struct_of
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.openai.formats import Formatted, ResponseFormat
from headrace_gateway.http.openai.responses.request import Format
from headrace_proto.pure.limits import MAX_PARTS_BYTES


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"type": "regex", "regex": "a", "syntax": "ebnf"}, "syntax", '= "ebnf" is set beside type "regex"'),
        ({"type": "text", "syntax": "lark"}, "syntax", '= "lark" is set beside type "text"'),
        ({"type": "json_object", "syntax": "lark"}, "syntax", 'allowed: beside type "grammar"'),
        ({"type": "text", "regex": "a"}, "", 'with type "text" needs nothing else, and has regex'),
    ],
)
def test_what_belongs_to_another_type_is_refused(given: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(Failure) as caught:
        struct_of(ResponseFormat, given).config()
    assert caught.value.field == ".".join(filter(None, ("response_format", field)))
    assert words in caught.value.message


def test_a_grammar_has_a_syntax() -> None:
    wanted = {"type": "grammar", "grammar": 'root ::= "a"', "syntax": "ebnf"}
    assert struct_of(ResponseFormat, wanted).config() == {
        "type": "grammar",
        "text": wanted["grammar"],
        "syntax": "EBNF",
    }


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"type": "json_schema", "name": "a"}, "text.format.schema"),
        ({"type": "text", "strict": True}, "text.format.strict"),
        ({"type": "json_object", "schema": {}}, "text.format.schema"),
        ({"type": "json_object", "name": "a"}, "text.format.name"),
    ],
)
def test_formats_of_responses_have_their_own_parts_alone(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Failure) as caught:
        struct_of(Format, given).config()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"type": "structural_tag", "triggers": [], "triggers": []}', "gives triggers twice"),
        ('{"type": "structural_tag", "format": {"type": "any_text", "type": "x"}}', "gives format.type twice"),
        ('{"type": "structural_tag", "format": "' + "x" * MAX_PARTS_BYTES + '"}', "allowed: at most 262144"),
        ("[", "is no structural tag as JSON text"),
    ],
)
def test_structural_tags_as_text_are_read_without_loss(text: str, words: str) -> None:
    with pytest.raises(Failure, match=words) as caught:
        struct_of(Formatted, {"structural_tag": text}).format_config()
    assert caught.value.field == "structural_tag"
