"""Marks of structural tags: no expression and no excluded text gets past them, whatever completes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.grammar import translate
from headrace_engine.guided.tags.marks import _completed
from headrace_engine.guided.tags.place import MAX_FEWEST
from headrace_engine.guided.tags.texts import MAX_ALTERNATIVES, MAX_ENDS
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_proto.pure.limits import MAX_PARTS_BYTES
from hypothesis import given
from hypothesis import strategies as st
from unit.guided.test_call_grammars import Letters
from unit.guided.test_structural_repeats import const, repeat
from unit.guided.test_structural_tags import accepts, form, guide, tag, triggered


def regex(pattern: str) -> dict[str, Any]:
    return form("regex", pattern=pattern)


def sequence(*elements: Any) -> dict[str, Any]:
    return form("sequence", elements=list(elements))


def without(*texts: str) -> dict[str, Any]:
    return form("any_text", excludes=list(texts))


EITHER = tag("<f>", regex("a</f>b|c"), "</f>")
OVERLAPPING = tag("<", regex("ab|c"), "aba")
SEVERAL = tag("<", regex("[a-z;]*"), ["; ", ";;", "."])
LONGER = tag("<", regex("[a-z)]*"), [")", "))"])
BEFORE = tag("<f>", sequence(regex(".*"), const("!")), "</f>")
TWICE = tag("<f>", form("plus", content=regex("[^!]!")), ["</f>", "?"])
CALLED = tag("<r>", form("dispatch", rules=[["<f>", regex("[a-z</>]*")]]), "</r>")
INNER = tag("(", tag("<f>", regex(".*"), "</f>"), ")")
LINE = tag("<", form("any_text"), "\n<|end|>")
LINES = tag("<", regex("[a-z\n]*"), ["\n<|end|>", "."])
TO_TOKEN = tag("<", regex("[a-z]*"), ["<|end|>", "stop"])


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (regex(""), "", True),
        (form("or", elements=[regex(""), const("a")]), "a", True),
        (form("star", content=form("or", elements=[regex(""), const("a")])), "aa", True),
        (EITHER, "<f>c</f>", True),
        (EITHER, "<f>a</f>b</f>", False),
        (OVERLAPPING, "<caba", True),
        (OVERLAPPING, "<ababa", False),
        (SEVERAL, "<a;b.", True),
        (SEVERAL, "<a;b; ", True),
        (SEVERAL, "<a;;", True),
        (SEVERAL, "<a;;b.", False),
        (LONGER, "<a)", True),
        (LONGER, "<a))", False),
        (BEFORE, "<f>a<b!</f>", False),
        (tag("<f>", sequence(regex("[^!]*"), const("!")), "</f>"), "<f>a<b!</f>", True),
        (tag("<f>", sequence(regex("[^!]*"), const("!")), "</f>"), "<f>a</f>b!</f>", False),
        (TWICE, "<f>a!b!</f>", True),
        (TWICE, "<f>a!?!?", False),
        (CALLED, "<r>a<f>b</r>", True),
        (CALLED, "<r>a<f>b</r>c</r>", False),
        (INNER, "(<f>a)b</f>)", True),
        (LINE, "<a\nb\n<|end|>", True),
        (LINE, "<a\nb<|end|>", False),
        (LINES, "<a\nb\n<|end|>", True),
        (LINES, "<a\nb.", True),
        (TO_TOKEN, "<abc<|end|>", True),
        (TO_TOKEN, "<abcstop", True),
        (TO_TOKEN, "<abstopc<|end|>", False),
    ],
)
def test_what_matches_a_regex_holds_no_mark(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text, "<|end|>") is accepted


COMPLETED = tag("<", without("ab"), ["b", "."])
SAME = tag("<", without("</"), "</")
DOUBLED = tag("<", without("\n\n"), "\n\n")
COMMENT = tag("<!--", without("--"), "-->")
WITHIN = tag("<", without("<"), ["</f>", "."])
TOLD = triggered(["bc"], [tag("bc", "d", "e")], excludes=["ab"])
ONCE = triggered(["bc"], [tag("bc", "d", "e")], excludes=["ab"], stop_after_first=True)
BEYOND = tag("<", without("a>b"), ">")
TO_TEXT = tag("<", without("ab", "x"), ["b<|end|>", "<|end|>"])


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (COMPLETED, "<a.", True),
        (COMPLETED, "<cb", True),
        (COMPLETED, "<ab", False),
        (COMPLETED, "<aab", False),
        (SAME, "<a<</", True),
        (SAME, "<a</", True),
        (DOUBLED, "<a\n\n", True),
        (DOUBLED, "<a\n\n\n", False),
        (DOUBLED, "<a\nb\n\n", True),
        (COMMENT, "<!--a-b-->", True),
        (COMMENT, "<!--a--b-->", False),
        (COMMENT, "<!--a--->", False),
        (WITHIN, "<a</f>", True),
        (WITHIN, "<a<b.", False),
        (TOLD, "a.bcde", True),
        (TOLD, "cbcde", True),
        (TOLD, "abcde", False),
        (ONCE, "cbcde", True),
        (ONCE, "abcde", False),
        (BEYOND, "<a>", True),
        (TO_TEXT, "<cb<|end|>", True),
        (TO_TEXT, "<ab<|end|>", False),
        (TO_TEXT, "<a<|end|>", True),
    ],
)
def test_no_mark_completes_an_excluded_text(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text, "<|end|>") is accepted


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (tag("<f>", regex("a</f>b"), "</f>"), '"a</f>b" matches no text without the mark "</f>"'),
        (tag("<", regex("ab"), "aba"), '"ab" matches no text without the mark "aba"'),
        (tag("<", sequence(regex("a;"), const("b")), [";", "<|end|>"]), '"a;" matches no text without the mark ";"'),
        (tag("<", without("a" * 999), "a" * 1000), "completes in too many ways"),
        (form("or", elements=[const("a")] * (MAX_ALTERNATIVES + 1)), "or.elements with 513 entries; allowed: at most"),
        (
            tag("<", const("a"), [f"{n}." for n in range(MAX_ENDS + 1)]),
            "end of a tag with 65 entries; allowed: at most",
        ),
        (without(*(f"{n}." for n in range(MAX_ALTERNATIVES + 1))), "excludes with 513 entries; allowed: at most 512"),
        (triggered(["<"] * (MAX_ALTERNATIVES + 1), [tag("<", "a", ">")]), "triggers with 513 entries"),
        (
            triggered(["<"], [tag("<", "a", ">")] * (MAX_ALTERNATIVES + 1)),
            "tags with 513 entries; allowed",
        ),
        (form("dispatch", rules=[[f"{n}.", const("a")] for n in range(513)]), "rules with 513 entries"),
        (repeat(MAX_FEWEST + 1, -1), "repeat with min = 4097; allowed: at most 4096"),
        (form("repeat", min=64, max=64, content=repeat(65, 65)), "min = 65, 64 times by the repeats around it"),
    ],
)
def test_what_no_text_could_have_is_refused_by_name(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters(["<|end|>"]), wanted)


def test_as_many_as_allowed_can_be_compiled() -> None:
    parts = form("or", elements=[const(f"x{n}y") for n in range(MAX_ALTERNATIVES)])
    wanted = tag("<", parts, [f"{n}." for n in range(MAX_ENDS)])
    assert accepts(wanted, "<x511y63.")
    assert not accepts(wanted, "<x512y63.")
    assert accepts(repeat(MAX_FEWEST, -1, "a"), "a" * MAX_FEWEST)
    assert not accepts(repeat(64, 64, "a"), "a" * 63)


def test_grammars_do_not_grow_with_parts_times_ends() -> None:
    texts = [form("any_text", excludes=[f"x{n}y"]) for n in range(64)]

    def length(parts: int, ends: int) -> int:
        wanted = tag("<", form("or", elements=texts[:parts]), [f"{n}." for n in range(ends)])
        text = json.dumps({"format": wanted})
        return len(translate(ResponseFormat(ResponseFormatKind.STRUCTURAL_TAG, text)).grammar)

    assert length(64, 64) < length(1, 64) + 2 * length(64, 1)


def test_as_many_tags_as_allowed_may_have_a_regex() -> None:
    tags = [tag(f"<{n}>", regex("[0-9]+"), "</>") for n in range(MAX_ALTERNATIVES)]
    assert accepts(triggered(["<"], tags), "so <511>12</>.")


TOKENS = ("<|call|>", "<|end|>", "<|stop|>")
THOUGHT = tag("<|call|>", form("any_tokens"), form("token", token="<|end|>"))
BY_TOKENS = form(
    "token_triggered_tags",
    trigger_tokens=["<|call|>"],
    tags=[tag(form("token", token="<|call|>"), "a", form("token", token="<|end|>"))],
    exclude_tokens=["<|stop|>"],
)
DISPATCHED = form("token_dispatch", rules=[["<|call|>", const("a")]], loop=False, exclude_tokens=["<|stop|>"])


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (form("token", token="<|end|>"), "<|end|>", True),
        (form("token", token=257), "<|end|>", True),
        (form("token", token=257), "<|call|>", False),
        (form("any_tokens"), "a<|end|>b", True),
        (form("any_tokens", exclude_tokens=[257]), "a<|call|>b", True),
        (form("any_tokens", exclude_tokens=[257]), "a<|end|>b", False),
        (THOUGHT, "<|call|>so<|end|>", True),
        (THOUGHT, "<|call|>so", False),
        (BY_TOKENS, "a<|end|>b<|call|>a<|end|>c", True),
        (BY_TOKENS, "<|call|>b", False),
        (BY_TOKENS, "a<|stop|>", False),
        ({**BY_TOKENS, "at_least_one": True}, "<|call|>a<|end|>c", True),
        ({**BY_TOKENS, "at_least_one": True}, "c<|call|>a<|end|>", False),
        (DISPATCHED, "b<|call|>a", True),
        (DISPATCHED, "b<|call|>ac", False),
    ],
)
def test_special_tokens_are_marks_as_texts_are(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text, *TOKENS) is accepted


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (form("token", token="a"), r'the token "a"; allowed: special tokens of the model'),
        (form("token", token=97), r"the token 97; allowed: special tokens"),
        (form("any_tokens", exclude_tokens=["b"]), 'the token "b"'),
        (form("any_tokens", max_tokens=5), r"`int` - at `\$.format.max_tokens`"),
        (form("exclude_token", exclude_tokens=[]), "Invalid value 'exclude_token'"),
        ({**BY_TOKENS, "trigger_tokens": [3]}, "the token 3"),
        ({**BY_TOKENS, "trigger_tokens": [256, 257]}, 'trigger "<.end.>" begins no tag'),
    ],
)
def test_tokens_that_are_no_special_ones_are_refused(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters(list(TOKENS)), wanted)


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
NESTED = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}


def styled(style: str, schema: Any = CITY) -> dict[str, Any]:
    return form("json_schema", json_schema=schema, style=style)


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (
            styled("qwen_xml"),
            "<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>",
            True,
        ),
        (styled("qwen_xml"), "<parameter=city>\nRome\n</parameter>", True),
        (styled("qwen_xml"), "<parameter=days>\n2\n</parameter>", False),
        (styled("qwen_xml"), "<parameter=city>\nRome\n</parameter>\n<parameter=days>\ntwo\n</parameter>", False),
        (form("qwen_xml_parameter", json_schema=CITY), "<parameter=city>\nRome\n</parameter>", True),
        (styled("minimax_xml"), '<parameter name="city">Rome</parameter>', True),
        (styled("minimax_xml"), "<parameter=city>Rome</parameter>", False),
        (styled("glm_xml"), "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>", True),
        (styled("glm_xml", NESTED), "<arg_key>a</arg_key><arg_value>[1, 2]</arg_value>", True),
        (
            styled("deepseek_xml"),
            '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>',
            True,
        ),
        (
            tag("<function=f>\n", styled("qwen_xml"), "\n</function>"),
            "<function=f>\n<parameter=city>\nRome\n</parameter>\n</function>",
            True,
        ),
    ],
)
def test_parameters_stand_one_by_one_in_styles_of_models(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text) is accepted


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (styled("cohere_xml"), "'cohere_xml' - at"),
        (styled("qwen_xml", True), 'in the style "qwen_xml"; allowed: schemas of objects'),
        (styled("glm_xml", {"type": "array"}), "allowed: schemas of objects"),
        (styled("glm_xml", {"type": "object", "minProperties": 2}), "minProperties cannot be enforced"),
    ],
)
def test_what_a_style_cannot_write_is_refused_by_name(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters([]), wanted)


@given(st.text("ab", min_size=1, max_size=12), st.text("ab", min_size=1, max_size=12))
def test_a_mark_completes_what_it_begins_with(mark: str, text: str) -> None:
    expected = [text[:at] for at in range(1, len(text)) if mark.startswith(text[at:])]
    assert _completed(mark, text) == expected


def test_a_mark_that_completes_a_long_text_everywhere_is_refused() -> None:
    """In a time that grows with the texts, not with the product of both."""
    with pytest.raises(InvalidArgument, match="completes in too many ways"):
        _completed("a" * (MAX_PARTS_BYTES // 2 + 1), "a" * (MAX_PARTS_BYTES // 2))
