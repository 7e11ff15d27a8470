"""The grammar of a text with structural tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.ebnf import lark_of_ebnf
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.forms import (
    AnyText,
    AnyTokens,
    ConstString,
    Dispatch,
    EbnfGrammar,
    Form,
    JsonSchema,
    Optional,
    Or,
    Plus,
    QwenParameters,
    Regex,
    Repeat,
    Repeated,
    SeparatedTags,
    Sequence,
    Star,
    Tag,
    Token,
    TokenDispatch,
    TokenTriggeredTags,
    TriggeredTags,
)
from headrace_engine.guided.tags.free_text import Found, FreeText
from headrace_engine.guided.tags.marks import Marks
from headrace_engine.guided.tags.parameters import parameters
from headrace_engine.guided.tags.place import Place
from headrace_engine.guided.tags.possible import check_possible
from headrace_engine.guided.tags.reading import read_tags
from headrace_engine.guided.tags.texts import Tagged, Triggered, check_count, tagged, tags_of, triggered
from headrace_engine.guided.tags.triggers import openings_of

MAX_DEPTH = 20
"""Maximum nesting of sequences, alternatives and tags."""


def grammar_of_tags(text: str, specials: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return the grammar of a structural tag, and warnings.

    Args:
        text: it, as JSON text.
        specials: the ids of special tokens, by their text.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    rules = Rules(specials)
    nothing = Marks(rules)
    start = _Grammar(rules).form(read_tags(text), Place(nothing, nothing))
    return rules.text(start), rules.warnings


class _Grammar:
    """Writes forms, each with what ends it."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._written: dict[tuple[Tagged, Marks | None], str] = {}

    def form(self, one: Form, place: Place) -> str:
        """Return a form."""
        if place.depth > MAX_DEPTH:
            raise refused(f"structural_tag is nested more than {MAX_DEPTH} deep")
        match one:
            case AnyText():
                return self._text(place, FreeText(self._rules, one.excludes))
            case AnyTokens():
                return self._text(place, FreeText(self._rules, self._specials(one.exclude_tokens)))
            case Sequence():
                return self._sequence(one, place)
            case Or():
                check_count("or.elements", one.elements)
                return self._one_of([self.form(part, place.inner()) for part in one.elements], "or.elements")
            case Tag():
                return self._tag(tagged(one, self._rules), place)
            case TriggeredTags() | TokenTriggeredTags() | Dispatch() | TokenDispatch():
                return self._triggered(triggered(one, self._rules), place)
            case Optional() | Plus() | Star() | Repeat():
                return self._repeated(one, place)
            case Regex() if one.pattern:
                return self._expression(one.pattern, place)
            case _:
                return f"{self._fixed(one, place)} {place.end}"

    def _fixed(self, one: Form, place: Place) -> str:
        """Return a form that says itself where it ends."""
        match one:
            case ConstString():
                return self._rules.literal(one.value)
            case Token():
                return self._rules.literal(self._rules.special(one.token))
            case JsonSchema() if one.any_order:
                raise refused("structural_tag has json_schema with any_order = true; allowed: false")
            case JsonSchema():
                return self._json(one.json_schema, one.style)
            case QwenParameters():
                return self._json(one.json_schema, "qwen_xml")
            case EbnfGrammar():
                return self._rules.nested(lark_of_ebnf(one.grammar))
            case SeparatedTags():
                return self._separated(one, place)
            case _:  # An empty expression.
                return self._rules.literal("")

    def _json(self, schema: bool | dict[str, object], style: str) -> str:
        return self._rules.json(schema) if style == "json" else parameters(self._rules, schema, style)

    def _specials(self, tokens: list[str | int]) -> list[str]:
        check_count("exclude_tokens", tokens)
        return [self._rules.special(one) for one in tokens]

    def _text(self, place: Place, free: FreeText) -> str:
        """Return any text with its end."""
        if place.follows is None:
            raise _endless("any_text")
        return free.upto(place.follows) if place.follows else free.any()

    def _expression(self, pattern: str, place: Place) -> str:
        """Return text that matches an expression, with its end: it holds no mark that ends it or the tag around it."""
        text = self._rules.expression(pattern)
        check_possible(pattern, place.follows or place.around, whole=bool(place.follows))
        if place.follows is None:
            self._rules.warn([f'structural_tag: "{pattern[:64]}" takes all that it matches, whatever follows it'])
            return place.around.none_in(text)
        return place.follows.after(text, strict=True) if place.follows else text

    def _repeated(self, one: Repeated, place: Place) -> str:
        """Return a part, as often as it may come, with its end."""
        match one:
            case Optional():
                content = self.form(one.content, place.inner())
                return self._rules.rule(f"{content} | {place.end}") if place.follows else f"({content})?"
            case Plus():
                times = "+"
            case Star():
                times = "*"
            case Repeat():
                times = place.times_of(one)
        content = self.form(one.content, place.before(one.min if isinstance(one, Repeat) and one.min else 1))
        return f"({content}){times} {place.end}" if times else place.end or '""'

    def _one_of(self, parts: list[str], name: str) -> str:
        if not parts:
            raise refused(f"structural_tag has no {name}; allowed: at least one")
        return self._rules.rule(" | ".join(parts))

    def _sequence(self, one: Sequence, place: Place) -> str:
        if not one.elements:
            raise refused("structural_tag has no sequence.elements; allowed: at least one")
        *first, last = one.elements
        return " ".join([*(self.form(part, place.before()) for part in first), self.form(last, place.inner())])

    def _tag(self, one: Tagged, place: Place) -> str:
        return f"{self._rules.literal(one.begin)} {self._after(one, place)}"

    def _after(self, one: Tagged, place: Place) -> str:
        """Return what follows the first mark of a tag. It is written once, however often it may come."""
        key = (one, place.follows)
        if key not in self._written:
            self._written[key] = self._rules.rule(self._body(one, place))
        return self._written[key]

    def _body(self, one: Tagged, place: Place) -> str:
        if one.ends == ("",):
            return self.form(one.content, place.inner())
        ends = Marks(self._rules, one.ends)
        return f"{self.form(one.content, place.within(ends))} {place.end}"

    def _separated(self, one: SeparatedTags, place: Place) -> str:
        tags = tags_of(one.tags, self._rules)
        tag = self._one_of([self._tag(each, replace(place, follows=None)) for each in tags], "tags")
        more = "" if one.stop_after_first else f"({self._rules.literal(one.separator)} {tag})*"
        return f"{tag} {more}" if one.at_least_one else f"({tag} {more})?"

    def _triggered(self, one: Triggered, place: Place) -> str:
        if place.follows is None:
            raise _endless("triggered_tags")
        _check_ends(one, place.follows)
        inner = replace(place, follows=None)
        openings = openings_of(one, self._rules, lambda tag: self._after(tag, inner))
        free = FreeText(self._rules, one.excludes)
        text = free.upto(place.follows) if place.follows else free.plain()
        found = Found(self._rules, free, openings, text, place.end)
        if not one.at_least_one:
            return found.first() if one.stop_after_first else found.all()
        tag = self._one_of([self._tag(tag, inner) for tag in one.tags], "tags")
        return f"{tag} {place.end if one.stop_after_first else found.all()}"


def _check_ends(form: Triggered, ends: Marks) -> None:
    """Refuse an end that a trigger is part of, or the other way round: only one of them could ever come."""
    for end in ends.begins:
        for trigger in form.triggers:
            if end in trigger or trigger in end:
                raise refused(f'structural_tag: trigger "{trigger[:64]}" and the end "{end[:64]}" contain each other')


def _endless(name: str) -> InvalidArgument:
    what = "may stand at the end, or in a tag that has an end"
    return refused(f"structural_tag has {name} before other parts, where nothing says where it ends: it {what}")
