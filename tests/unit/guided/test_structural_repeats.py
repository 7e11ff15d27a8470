"""Repeated parts, grammars and excluded texts of structural tags: the texts of xgrammar's documentation and tests
(docs/structural_tag/structural_tag.md, tests/python/test_structural_tag_converter.py), and what they do together.
"""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.errors import InvalidArgument
from unit.guided.test_call_grammars import Letters
from unit.guided.test_structural_tags import TAGS, accepts, form, guide, tag, triggered

HELLO = form("grammar", grammar='root ::= "Hello!" number\n            number ::= [0-9] | [0-9] number')
YES = form("grammar", grammar='root ::= ("yes" | "no")')
CLEAN = tag("", form("any_text", excludes=["<end>", "</tag>"]), ".")
WITHOUT = form("triggered_tags", triggers=["A"], tags=TAGS, at_least_one=True, excludes=["L1", "L2"])


def const(text: str) -> dict[str, Any]:
    return form("const_string", value=text)


def repeat(least: int, most: int, text: str = "item") -> dict[str, Any]:
    return form("repeat", min=least, max=most, content=const(text))


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (HELLO, "Hello!12345", True),
        (HELLO, "Hello!0", True),
        (HELLO, "Hello!", False),
        (HELLO, "Hello!123a", False),
        (HELLO, "Hi!123", False),
        (YES, "yes", True),
        (YES, "maybe", False),
        (CLEAN, "This is a test string.", True),
        (CLEAN, "This string contains <end> which is excluded.", False),
        (CLEAN, "Another string with </tag> inside.", False),
        (CLEAN, "A clean string without excluded substrings.", True),
        (CLEAN, "<end> at the beginning.", False),
        (CLEAN, "At the end </tag>.", False),
        (WITHOUT, "A", False),
        (WITHOUT, "A1", False),
        (WITHOUT, "A1L1AB", True),
        (WITHOUT, "A1L2A", False),
        (WITHOUT, "L1A1L1A", False),
        (WITHOUT, "L2A2L2A", False),
        (WITHOUT, "A1L1AL1", False),
        (WITHOUT, "A1L1AA2L2A", True),
        (form("optional", content=const("Optional prefix: ")), "", True),
        (form("optional", content=const("Optional prefix: ")), "Optional prefix: ", True),
        (form("optional", content=const("O")), "OO", False),
        (form("plus", content=const("item")), "item", True),
        (form("plus", content=const("item")), "itemitemitem", True),
        (form("plus", content=const("item")), "", False),
        (form("star", content=const("x")), "", True),
        (form("star", content=const("x")), "xxxx", True),
        (form("star", content=const("x")), "xxy", False),
        (repeat(1, 3), "", False),
        (repeat(1, 3), "itemitem", True),
        (repeat(1, 3), "item" * 4, False),
        (repeat(2, -1), "item", False),
        (repeat(2, -1), "item" * 5, True),
        (repeat(0, 0), "", True),
        (repeat(0, 0), "item", False),
    ],
)
def test_published_texts_are_told_apart(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text) is accepted


SMALL = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
CALLED = form("dispatch", rules=[["<f>", form("json_schema", json_schema=SMALL)], ["<g>", const("!")]])
ONCE = {**CALLED, "loop": False}
INSIDE = tag("<r>", {**CALLED, "excludes": ["</r>"]}, "</r>")
LINES = form("plus", content=form("sequence", elements=[form("json_schema", json_schema=SMALL), const("\n")]))
MAYBE = tag("(", form("optional", content=form("any_text")), [")", "]"])
WORDS = tag("<w>", form("repeat", min=1, max=2, content=form("or", elements=[const("a"), YES])), "</w>")
NUMBERS = form("sequence", elements=[form("star", content=HELLO), tag("<n>", HELLO, "</n>")])
SPOKEN = form("sequence", elements=[form("optional", content=tag("<t>", form("any_text"), "</t>")), const("So.")])
DEFAULTS = form(
    "sequence",
    elements=[
        form("json_schema", json_schema=SMALL, style="json", any_order=False),
        form("any_text", excludes=[], max_tokens=None, max_chars=None),
    ],
)


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (CALLED, 'See <f>{"a": 1} and <g>! or <f>{"a": 2}.', True),
        (CALLED, "See <f>{}", False),
        (CALLED, "none", True),
        (ONCE, "See <g>!", True),
        (ONCE, "See <g>!.", False),
        (INSIDE, '<r>See <f>{"a": 1} then</r>', True),
        (INSIDE, "<r>none</r>", True),
        (INSIDE, "<r>none</r>more", False),
        (LINES, '{"a": 1}\n{"a": 2}\n', True),
        (LINES, '{"a": 1}{"a": 2}\n', False),
        (MAYBE, "()", True),
        (MAYBE, "(so]", True),
        (MAYBE, "(so", False),
        (WORDS, "<w>ayes</w>", True),
        (WORDS, "<w></w>", False),
        (WORDS, "<w>nonoa</w>", False),
        (NUMBERS, "Hello!1Hello!22<n>Hello!3</n>", True),
        (NUMBERS, "<n>Hello!3</n>", True),
        (NUMBERS, "Hello!1<n></n>", False),
        (SPOKEN, "<t>well</t>So.", True),
        (SPOKEN, "So.", True),
        (SPOKEN, "<t>well</t>", False),
        (DEFAULTS, '{"a": 1} and more', True),
        (form("any_text", excludes=['"\\', "\n"]), 'a " b \\', True),
        (form("any_text", excludes=['"\\', "\n"]), 'a "\\ b', False),
        (form("any_text", excludes=['"\\', "\n"]), "a\nb", False),
        (triggered(["A"], TAGS, excludes=["no"]), "yes A1L1A yes", True),
        (triggered(["A"], TAGS, excludes=["no"]), "no A1L1A", False),
        (triggered(["A"], TAGS, excludes=["no"], stop_after_first=True), "n A1L1A", True),
        (triggered(["A"], TAGS, excludes=["no"], stop_after_first=True), "no A1L1A", False),
    ],
)
def test_parts_repeat_within_each_other(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text) is accepted


TOLD = triggered(["<|call|>f"], [tag("<|call|>f", "a", "<|end|>")], excludes=["<|stop|>", "no"])


@pytest.mark.parametrize(
    ("wanted", "text", "accepted"),
    [
        (form("any_text", excludes=["<|stop|>"]), "a<|end|>b", True),
        (form("any_text", excludes=["<|stop|>"]), "a<|stop|>b", False),
        (form("any_text", excludes=["<|stop|>", "no"]), "a<|end|>no", False),
        (TOLD, "a<|end|>b<|call|>fa<|end|>c", True),
        (TOLD, "a<|stop|>b", False),
        (TOLD, "a<|call|>b", True),
        (TOLD, "a<|call|>no", False),
        (TOLD, "a<|end|>no", False),
    ],
)
def test_special_tokens_can_be_excluded(wanted: Any, text: str, accepted: bool) -> None:
    assert accepts(wanted, text, "<|call|>", "<|end|>", "<|stop|>") is accepted


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (form("any_text", excludes=[""]), 'excludes has ""'),
        (form("any_text", excludes=["a<|end|>"]), 'excludes has "a<|end|>"'),
        (triggered(["A"], TAGS, excludes=[""]), 'excludes has ""'),
        (form("any_text", max_tokens=5), r"`int` - at `\$.format.max_tokens`"),
        (form("any_text", max_chars=5), r"`int` - at `\$.format.max_chars`"),
        (form("json_schema", json_schema=SMALL, any_order=True), "any_order = true"),
        (form("grammar", grammar="start: 'a'"), "grammar is not EBNF"),
        (form("grammar", grammar="root ::= other"), "other"),
        (repeat(2, 1), "min = 2 and max = 1"),
        (repeat(-1, 1), "min = -1 and max = 1"),
        (repeat(0, 2**31), "max = 2147483648"),
        (form("plus", content=form("any_text")), "any_text before other parts"),
        (form("star", content=form("or", elements=[])), "has no or.elements"),
        (form("dispatch", rules=[]), "has no tags"),
        (form("dispatch", rules=[["", const("a")]]), "empty trigger"),
        (form("dispatch", rules=[["a", const("a")], ["ab", const("a")]]), 'tag "ab" begins with 2 of the triggers'),
    ],
)
def test_what_is_not_supported_is_refused_by_name(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words.replace("|", r"\|")):
        guide(Letters(["<|end|>"]), wanted)


def nested(depth: int) -> dict[str, Any]:
    """Repeats within repeats."""
    inner = nested(depth - 1) if depth else const("a")
    return form("repeat", min=1, max=1000, content=tag("(", inner, ")"))


def test_nested_repeats_have_a_limit() -> None:
    assert accepts(nested(2), "((" + "(a)" * 50 + ")((a)))((" + "(a)))")
    assert not accepts(nested(2), "(((a))")
    with pytest.raises(InvalidArgument, match="nested more than 20 deep"):
        guide(Letters([]), nested(11))


@pytest.mark.parametrize(
    ("rules", "text", "accepted"),
    [
        (r'"echo " [^;|&&$]+', "echo a;rm", False),
        (r'"echo " [^;|&&$]+', "echo arm", True),
        (r"[^a&&b]+", "&", False),
        (r"[a&&b~]+", "a&b~", True),
        (r'"\u00e9ab"', "éab", True),
        (r'"\u00e9ab"', "\ue9ab", False),
        (r'"\u0041" [\u00e9-\u00eb]', "Aê", True),
        (r'"\U0001F600" "\\u0041"', "😀\\u0041", True),
        ('"::=" [a-z"]+ # b ::= "c"', '::="a"', True),
    ],
)
def test_characters_of_ebnf_stand_for_themselves(rules: str, text: str, accepted: bool) -> None:
    assert accepts(form("grammar", grammar=f"root ::= {rules}\n"), text) is accepted


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('root ::= "a"\nroot ::= "b"', 'has the rule "root" twice'),
        (r'root ::= "\ud800"', "which is no character"),
        ("root ::= [a-z--m]", r"which -- is ambiguous; write \\x2d"),
    ],
)
def test_ebnf_that_the_library_would_misread_is_refused(rules: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters([]), form("grammar", grammar=rules))
