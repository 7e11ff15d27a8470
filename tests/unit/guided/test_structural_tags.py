"""Texts with structural tags: those that xgrammar's tests accept (tests/python/test_structural_tag_converter.py and
test_grammar_matcher_structural_tag.py), and what belongs to models whose marks are special tokens.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.check import check
from headrace_engine.guided.guide import Guide
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from support.models.guided_walks import ids_of
from unit.guided.test_call_grammars import Letters, drawn

PAIR = {
    "type": "object",
    "properties": {"arg1": {"type": "string"}, "arg2": {"type": "integer"}},
    "required": ["arg1", "arg2"],
}
LIST = {
    "type": "object",
    "properties": {"arg3": {"type": "number"}, "arg4": {"type": "array", "items": {"type": "string"}}},
    "required": ["arg3", "arg4"],
}


def older(triggers: list[str], *structures: tuple[str, Any, str]) -> dict[str, Any]:
    found = [{"begin": begin, "schema": schema, "end": end} for begin, schema, end in structures]
    return {"type": "structural_tag", "triggers": triggers, "structures": found}


def form(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    text = {"type": "const_string", "value": content} if isinstance(content, str) else content
    return {"type": "tag", "begin": begin, "content": text, "end": end}


def untyped(*given: str) -> dict[str, Any]:
    return {name: value for name, value in tag(*given).items() if name != "type"}


def triggered(triggers: list[str], tags: list[Any], **more: bool) -> dict[str, Any]:
    return form("triggered_tags", triggers=triggers, tags=tags, **more)


TAGS = [untyped("A1", "L1", "A"), untyped("A2", "L2", "A")]
CHOICES = [
    {"at_least_one": at_least_one, "stop_after_first": stop}
    for at_least_one, stop in ((False, False), (True, False), (False, True), (True, True))
]
EMPTY = [tag("<a>", "X", "</a>"), tag("<b>", "Y", "</b>")]


def guide(letters: Letters, wanted: Any) -> Guide:
    text = json.dumps(wanted if {"format", "triggers"} & wanted.keys() and "tags" not in wanted else {"format": wanted})
    vocabulary = Vocabulary(letters, len(letters.pieces))
    checked = check(vocabulary, ResponseFormat(ResponseFormatKind.STRUCTURAL_TAG, text))
    return vocabulary.guide(checked.grammar, (letters.eos,))


def accepts(wanted: Any, text: str, *specials: str) -> bool:
    """True if a guide allows a text, id by id, and its end."""
    letters = Letters(list(specials))
    following = guide(letters, wanted)
    for token_id in letters.ids(text):
        if token_id not in ids_of(following):
            return False
        following.take([token_id])
    return letters.eos in ids_of(following)


FUNCTIONS = older(
    ["<function=f", "<function=g"],
    ("<function=f1>", PAIR, "</function>"),
    ("<function=f2>", json.dumps(PAIR), "</function>"),
    ("<function=g>", LIST, "</function>"),
)
MARKS = older(
    ["，", "｜｜"],
    ("，，", PAIR, "。"),
    ("，！", PAIR, "。。"),
    ("，，？", PAIR, "。。。"),
    ("｜｜？", PAIR, "｜？｜"),
)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (FUNCTIONS, '<function=f1>{"arg1": "abc", "arg2": 1}</function>'),
        (FUNCTIONS, '<function=g>{"arg3": 1.23, "arg4": ["a", "b", "c"]}</function>'),
        (
            FUNCTIONS,
            '<function=f2>{"arg1": "abc", "arg2": 1}</function>'
            '<function=g>{"arg3": 1.23, "arg4": ["a", "b", "c"]}</function>',
        ),
        (
            FUNCTIONS,
            'hhhh<function=g>{"arg3": 1.23, "arg4": ["a", "b", "c"]}</function>haha'
            '<function=f1>{"arg1": "abc", "arg2": 1}</function>123',
        ),
        (MARKS, '这是无用的内容，，{"arg1": "你好，世界！", "arg2": 0}。这是无用的内容'),
        (MARKS, '这是无用的内容，！{"arg1": "こんにちは！", "arg2": 1}。。这是无用的内容'),
        (
            MARKS,
            '这是无用的内容，，？{"arg1": "안녕하세요！", "arg2": 2}。。。这是无用的内容，！'
            '{"arg1": "안녕하세요！", "arg2": 3}。。',
        ),
        (
            MARKS,
            '这是无用的内容｜｜？{"arg1": "။စ်န, ်ပြ！", "arg2": 0}｜？｜｜｜？{"arg1": "။စ်န, ်ပြ", "arg2": 0}｜？｜',
        ),
        (
            triggered(["<start>"], [untyped("<start>", "[TEXT]", "<end>")]),
            "<start>[TEXT]<end>[TEXT]<start>[TEXT]<end>[TEXT]",
        ),
    ],
)
def test_published_texts_are_accepted(wanted: Any, text: str) -> None:
    assert accepts(wanted, text)


OUTSIDE = [tag("begin", triggered(["A"], TAGS, **choice), "end") for choice in CHOICES]
SEPARATED = [form("tags_with_separator", tags=TAGS, separator="AA", **choice) for choice in CHOICES]
INSIDE = [tag("begin", one, "end") for one in SEPARATED]
UNSEPARATED = [form("tags_with_separator", tags=EMPTY, separator="", **choice) for choice in CHOICES]


@pytest.mark.parametrize(
    ("forms", "text", "accepted"),
    [
        (OUTSIDE, "beginabcA1L1Atextend", [True, False, False, False]),
        (OUTSIDE, "beginA1L1AtextA2L2Aend", [True, True, False, False]),
        (OUTSIDE, "beginA1L1Aend", [True, True, True, True]),
        (OUTSIDE, "beginend", [True, False, True, False]),
        (OUTSIDE, "beginA1L1Aendabc", [False, False, False, False]),
        (OUTSIDE, "beginA1L2end", [False, False, False, False]),
        (SEPARATED, "", [True, False, True, False]),
        (SEPARATED, "A1L1A", [True, True, True, True]),
        (SEPARATED, "A1L1AAAA2L2A", [True, True, False, False]),
        (SEPARATED, "A1L1AA2L2A", [False, False, False, False]),
        (INSIDE, "beginend", [True, False, True, False]),
        (INSIDE, "beginA1L1Aend", [True, True, True, True]),
        (INSIDE, "beginA1L1AAAA2L2Aend", [True, True, False, False]),
        (INSIDE, "beginA1L1A", [False, False, False, False]),
        (INSIDE, "beginA1L1AA2L2Aend", [False, False, False, False]),
        (UNSEPARATED, "<a>X</a>", [True, True, True, True]),
        (UNSEPARATED, "<a>X</a><b>Y</b>", [True, True, False, False]),
        (UNSEPARATED, "<b>Y</b><a>X</a><b>Y</b>", [True, True, False, False]),
        (UNSEPARATED, "<a>X</a>,<b>Y</b>", [False, False, False, False]),
        (UNSEPARATED, "<c>Z</c>", [False, False, False, False]),
    ],
)
def test_published_texts_by_how_many_tags_may_come(forms: list[Any], text: str, accepted: list[bool]) -> None:
    assert [accepts(one, text) for one in forms] == accepted


THINKING = form("sequence", elements=[tag("<think>", {"type": "any_text"}, "</think>"), triggered(["A"], TAGS)])
NESTED = form("or", elements=[form("regex", pattern="a/b\\/[0-9]+"), tag("(", form("any_text"), [")", "]"])])


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (THINKING, "<think>A3</think>well A1L1A.", True),
        (THINKING, "<think>so</think>A3", False),
        (THINKING, "A1L1A", False),
        (NESTED, "a/b/17", True),
        (NESTED, "a/b/x", False),
        (NESTED, "(any]", True),
        (NESTED, "(any", False),
        (form("any_text"), "any\n<text>", True),
        (triggered(["A"], TAGS, at_least_one=True), "A1L1A then A2L2A.", True),
        (triggered(["A"], TAGS, at_least_one=True), "First A1L1A", False),
        (triggered(["A"], TAGS, stop_after_first=True), "First A1L1A", True),
        (triggered(["A"], TAGS, stop_after_first=True), "First A1L1A.", False),
        (tag("<", form("json_schema", json_schema=PAIR), ""), '<{"arg1": "", "arg2": 0}', True),
        (tag("<", form("any_text"), ""), "<any", True),
        (tag("<f>", form("regex", pattern=".*"), "</f>"), "<f>abc</f>", True),
        (tag("<f>", form("regex", pattern=".*"), "</f>"), "<f>a</f>b</f>", False),
        (tag("<f>", form("regex", pattern="[^>]*"), ["</f>", "!"]), "<f>a b!", True),
        (tag("<f>", form("regex", pattern="[0-9]+"), "</f>"), "<f></f>", False),
        (tag("<f>", form("regex", pattern=""), "</f>"), "<f></f>", True),
        (form("sequence", elements=[form("regex", pattern="[0-9]+"), tag("a", "b", "c")]), "17abc", True),
    ],
)
def test_parts_follow_and_stand_within_each_other(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text) is accepted


HARMONY = older(
    ["<|channel|>commentary"],
    ("<|channel|>commentary to=functions.f<|message|>", PAIR, "<|end|>"),
)
STARTED = triggered(["<|start|>"], [tag("<|start|>", "a", "<|end|>")], stop_after_first=True)
STARTED_B = triggered(["<|start|>b"], [tag("<|start|>b", "a", "<|end|>")], stop_after_first=True)
KINDS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
CALL = '{"arg1": "x", "arg2": 2}'


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (HARMONY, f"<|channel|>commentary to=functions.f<|message|>{CALL}<|end|>", True),
        (HARMONY, "<|channel|>analysis<|message|>So<|end|><|start|>assistant<|channel|>final<|message|>Hi", True),
        (HARMONY, "<|channel|>comm<|message|>Hi", True),
        (HARMONY, "<|channel|>commentary<|message|>Hi", False),
        (HARMONY, "<|channel|>commentary to=functions.f<|message|>{}<|end|>", False),
        (older(["<|cha"], ("<|channel|>f", PAIR, "<|end|>")), f"<|start|>a<|channel|>f{CALL}<|end|><|start|>", True),
        (older(["<|cha"], ("<|channel|>f", PAIR, "<|end|>")), "<|channel|>g", False),
        (older(["<f"], ("<f>", PAIR, "<|end|>")), f"<|start|>a<f>{CALL}<|end|>b<|start|>", True),
        (STARTED, "b<|message|>c<|start|>a<|end|>", True),
        (STARTED, "b<|message|>c<|start|>a<|end|>d", False),
        (STARTED_B, "b<|start|>c<|end|>c<|start|>ba<|end|>", True),
        (STARTED_B, "<|start|>ba<|end|>d", False),
        (form("any_text"), "a<|start|>b<|end|>", True),
        (tag("<", form("any_text"), "<|end|>"), "<so<|end|>", True),
        (tag("<", form("any_text"), "<|end|>"), "<so<|start|><|end|>", False),
        (tag("<", form("regex", pattern="[a-z]*"), "<|end|>"), "<so<|end|>", True),
        (tag("<", triggered(["<f"], [tag("<f", "a", ">")]), "<|end|>"), "<so<fa><|end|>", True),
    ],
)
def test_marks_that_are_special_tokens_begin_tags(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text, *KINDS) is accepted


def test_drawn_texts_satisfy_their_schemas() -> None:
    letters, seen = Letters([]), 0
    small = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    one = tag("<f>", form("json_schema", json_schema=small), "</f>")
    wanted = form("tags_with_separator", separator=";", tags=[one])
    for seed in range(10):
        text = drawn(letters, guide(letters, wanted), seed)
        for part in text.split(";") if text else []:
            jsonschema.validate(json.loads(part.removeprefix("<f>").removesuffix("</f>")), small)
            seen += 1
    assert seen


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (older(["<g"], ("<f>", PAIR, "")), r'tag "<f>" begins with 0 of the triggers'),
        (older(["<", "<f"], ("<f>", PAIR, "")), r'tag "<f>" begins with 2 of the triggers'),
        (older(["<f", "<g"], ("<f>", PAIR, "")), 'trigger "<g" begins no tag'),
        (older(["f", "<f"], ("f>", PAIR, ""), ("<f>", PAIR, "")), 'trigger "<f" has "f" within'),
        (older(["<f"]), "has no tags"),
        (older([""], ("<f>", PAIR, "")), "empty trigger"),
        (older(["<f"], ("<f>", {"not": {}}, "")), "not: list what is allowed"),
        (older(["<f"], ("<f>", "{", "")), r"structural_tag.structures\[0\].schema is not JSON"),
        (older(["<f"], ("<f>", 5, "")), r"structures\[0\].schema"),
        ({**older(["<f"], ("<f>", PAIR, "")), "more": 1}, "unknown field `more`"),
        ({**older(["<f"], ("<f>", PAIR, "")), "format": {"type": "any_text"}}, "unknown field"),
        ({"format": {"type": "exclude_token"}}, "Invalid value 'exclude_token'"),
        (triggered(["A"], [{**TAGS[0], "excludes": []}, TAGS[1]]), "unknown field `excludes`"),
        (tag("<", "a", []), "a tag without end"),
        (tag("<", "a", ["", "b"]), "an empty end among others"),
        (form("or", elements=[]), "has no or.elements"),
        (form("sequence", elements=[]), "has no sequence.elements"),
        (form("sequence", elements=[form("any_text"), form("any_text")]), "has any_text before other parts"),
        (form("sequence", elements=[triggered(["A"], TAGS), form("any_text")]), "triggered_tags before other parts"),
        (tag("(", triggered(["<"], [tag("<", "a", ">")]), "</("), 'trigger "<" and the end "</\\(" contain each other'),
        (tag("(", triggered(["<f"], [tag("<f", "a", ">")]), "<"), 'trigger "<f" and the end "<" contain each other'),
        (tag("(", form("regex", pattern="[a-"), ")"), "cannot be compiled"),
        (form("json_schema", json_schema=False), "allows nothing"),
        (form("regex", pattern="[a-"), "cannot be compiled"),
        (older(["a<|end|>"], ("a<|end|>", PAIR, "")), "special token after text"),
        (older(["a", "<|end|>b"], ("a", PAIR, "."), ("<|end|>b", PAIR, ".")), "exclude each other"),
        ({"format": "[" * 5000}, "structural_tag.format is nested too deep"),
        ({"format": {"type": "const_string", "value": "a" * (257 << 10)}}, "allowed: at most 262144"),
    ],
)
def test_what_is_no_structural_tag_is_refused_by_name(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters(["<|end|>"]), wanted)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": {"type": "any_text"}, "format": {"type": "any_text"}}', "structural_tag gives format twice"),
        ('{"format": {"type": "any_text", "type": "regex"}}', r"structural_tag gives format\.type twice"),
        (json.dumps({"format": '{"type": "any_text", "type": "regex"}'}), r"structural_tag\.format gives type twice"),
        (
            json.dumps(older(["<"], ("<", "{}", ">"), ("<<", '{"a": {"type": 1, "type": 2}}', ">"))),
            r"structural_tag\.structures\[1\]\.schema gives a\.type twice",
        ),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_its_path(text: str, words: str) -> None:
    letters = Letters([])
    with pytest.raises(InvalidArgument, match=words):
        check(Vocabulary(letters, len(letters.pieces)), ResponseFormat(ResponseFormatKind.STRUCTURAL_TAG, text))


def deep(depth: int, **more: bool) -> dict[str, Any]:
    """Tags within tags."""
    inner = deep(depth - 1, **more) if depth else form("any_text")
    return triggered(["<"], [tag("<", inner, ">")], **more)


def test_nested_tags_have_a_limit_and_grow_with_it() -> None:
    letters = Letters([])
    assert letters.eos not in ids_of(guide(letters, deep(19, at_least_one=True)))
    with pytest.raises(InvalidArgument, match="nested more than 20 deep"):
        guide(letters, deep(20))
