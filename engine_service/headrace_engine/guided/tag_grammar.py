"""The grammar of a text with structural tags."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.ebnf import lark_of_ebnf
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tag_text import Found, FreeText
from headrace_engine.guided.tag_triggers import openings_of
from headrace_engine.guided.tags import (
    AnyText,
    ConstString,
    Dispatch,
    EbnfGrammar,
    Form,
    JsonSchema,
    Optional,
    Or,
    Plus,
    Regex,
    Repeat,
    Repeated,
    SeparatedTags,
    Sequence,
    Star,
    Tag,
    TriggeredTags,
    read_tags,
)

MAX_DEPTH = 20
"""Maximum nesting of sequences, alternatives and tags."""

MAX_REPEATS = 2**31 - 1
"""Maximum number of `repeat`."""

Ends = tuple[str, ...] | None
"""The marks of which one follows, and is written too; (): the answer ends; None: what follows is not known."""


def grammar_of_tags(text: str, specials: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return the grammar of a structural tag, and warnings.

    Args:
        text: it, as JSON text.
        specials: the ids of special tokens, by their text.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    rules = Rules(specials)
    start = _Grammar(rules).form(read_tags(text), (), 0)
    return rules.text(start), rules.warnings


class _Grammar:
    """Writes forms, each with what ends it."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._written: dict[tuple[int, Ends], tuple[Tag, str]] = {}

    def form(self, one: Form, ends: Ends, depth: int) -> str:
        """Return a form."""
        if depth > MAX_DEPTH:
            raise refused(f"structural_tag is nested more than {MAX_DEPTH} deep")
        match one:
            case AnyText():
                return self._text(ends, FreeText(self._rules, one.excludes))
            case ConstString():
                return f"{self._rules.literal(one.value)} {self._end(ends)}"
            case JsonSchema():
                return f"{self._json(one)} {self._end(ends)}"
            case Regex():
                return self._expression(one.pattern, ends)
            case EbnfGrammar():
                return f"{self._rules.nested(lark_of_ebnf(one.grammar))} {self._end(ends)}"
            case Sequence():
                return self._sequence(one, ends, depth)
            case Or():
                return self._one_of([self.form(part, ends, depth + 1) for part in one.elements], "or.elements")
            case Tag():
                return self._tag(one, ends, depth)
            case SeparatedTags():
                return f"{self._separated(one, depth)} {self._end(ends)}"
            case TriggeredTags():
                return self._triggered(one, ends, depth)
            case Dispatch():
                return self._triggered(one.tags(), ends, depth)
            case _:
                return self._repeated(one, ends, depth)

    def _end(self, ends: Ends) -> str:
        return self._rules.rule(" | ".join(map(self._rules.literal, ends))) if ends else ""

    def _text(self, ends: Ends, free: FreeText) -> str:
        """Return any text with its end."""
        if ends is None:
            raise _endless("any_text")
        return self._rules.rule(" | ".join(map(free.upto, ends))) if ends else free.any()

    def _json(self, one: JsonSchema) -> str:
        if one.any_order:
            raise refused("structural_tag has json_schema with any_order = true; allowed: false")
        return self._rules.json(one.json_schema)

    def _repeated(self, one: Repeated, ends: Ends, depth: int) -> str:
        """Return a part, as often as it may come, with its end."""
        match one:
            case Optional():
                content = self.form(one.content, ends, depth + 1)
                return self._rules.rule(f"{content} | {self._end(ends)}") if ends else f"({content})?"
            case Plus():
                times = "+"
            case Star():
                times = "*"
            case Repeat():
                times = _times(one)
        content = self.form(one.content, None, depth + 1)
        return f"({content}){times} {self._end(ends)}" if times else self._end(ends) or '""'

    def _expression(self, pattern: str, ends: Ends) -> str:
        """Return text that matches an expression, with its end: it holds no mark that ends it."""
        text = self._rules.expression(pattern)
        if ends is None:
            self._rules.warn([f'structural_tag: "{pattern[:64]}" takes all that it matches, whatever follows it'])
        return self._rules.rule(" | ".join(self._rules.upto(end, text) for end in ends)) if ends else text

    def _one_of(self, parts: list[str], name: str) -> str:
        if not parts:
            raise refused(f"structural_tag has no {name}; allowed: at least one")
        return self._rules.rule(" | ".join(parts))

    def _sequence(self, one: Sequence, ends: Ends, depth: int) -> str:
        if not one.elements:
            raise refused("structural_tag has no sequence.elements; allowed: at least one")
        *first, last = one.elements
        parts = [self.form(part, None, depth + 1) for part in first]
        return " ".join([*parts, self.form(last, ends, depth + 1)])

    def _tag(self, one: Tag, ends: Ends, depth: int) -> str:
        return f"{self._rules.literal(one.begin)} {self._after(one, ends, depth)}"

    def _after(self, one: Tag, ends: Ends, depth: int) -> str:
        """Return what follows the first mark of a tag. It is written once, however often it may come."""
        key = (id(one), ends)
        if key not in self._written:
            self._written[key] = one, self._rules.rule(self._body(one, ends, depth))
        return self._written[key][1]

    def _body(self, one: Tag, ends: Ends, depth: int) -> str:
        if not one.ends:
            raise refused("structural_tag has a tag without end; allowed: at least one text, which may be empty")
        if one.ends == ("",):
            return self.form(one.content, ends, depth + 1)
        if "" in one.ends:
            raise refused("structural_tag has an empty end among others; allowed: one alone")
        return f"{self.form(one.content, one.ends, depth + 1)} {self._end(ends)}"

    def _separated(self, one: SeparatedTags, depth: int) -> str:
        tag = self._one_of([self._tag(tag, None, depth) for tag in one.tags], "tags")
        more = "" if one.stop_after_first else f"({self._rules.literal(one.separator)} {tag})*"
        return f"{tag} {more}" if one.at_least_one else f"({tag} {more})?"

    def _triggered(self, one: TriggeredTags, ends: Ends, depth: int) -> str:
        if ends is None:
            raise _endless("triggered_tags")
        _check_ends(one, ends, self._rules)
        openings = openings_of(one, self._rules, lambda tag: self._after(tag, None, depth))
        free = FreeText(self._rules, one.excludes)
        found = Found(self._rules, free, openings, self._text(ends, free) if ends else free.plain(), self._end(ends))
        if not one.at_least_one:
            return found.first() if one.stop_after_first else found.all()
        tag = self._one_of([self._tag(tag, None, depth) for tag in one.tags], "tags")
        return f"{tag} {self._end(ends) if one.stop_after_first else found.all()}"


def _times(one: Repeat) -> str:
    """Return how often a part is repeated, in the library's language; "": it does not come."""
    if one.max == -1 and 0 <= one.min <= MAX_REPEATS:
        return f"{{{one.min},}}"
    if not 0 <= one.min <= one.max <= MAX_REPEATS:
        what = f"0 to {MAX_REPEATS}, min at most max, or max = -1"
        raise refused(f"structural_tag has repeat with min = {one.min} and max = {one.max}; allowed: {what}")
    return f"{{{one.min},{one.max}}}" if one.max else ""


def _check_ends(form: TriggeredTags, ends: tuple[str, ...], rules: Rules) -> None:
    """Refuse an end that a trigger is part of, or the other way round: only one of them could ever come."""
    for end in ends:
        (text, token_id), *_ = rules.parts(end)
        for trigger in form.triggers if token_id is None else ():
            if text in trigger or trigger in text:
                raise refused(f'structural_tag: trigger "{trigger[:64]}" and the end "{end[:64]}" contain each other')


def _endless(name: str) -> InvalidArgument:
    what = "may stand at the end, or in a tag that has an end"
    return refused(f"structural_tag has {name} before other parts, where nothing says where it ends: it {what}")
