"""Forms whose marks are texts, whether they were given as texts or as special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.forms import (
    Dispatch,
    Form,
    Tag,
    Token,
    TokenDispatch,
    TokenTriggeredTags,
    TriggeredTags,
)

MAX_ALTERNATIVES = 512
"""Maximum entries of a list of parts, tags or texts: of some 700 that may come at one place the parser gives up."""

MAX_ENDS = 64
"""Maximum ends of a tag: each part within that goes up to its end is looked through for all of them."""


@dataclass(frozen=True, eq=False)
class Tagged:
    """A part between two marks.

    Attributes:
        ends: the marks of which one comes after it.
    """

    begin: str
    content: Form
    ends: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Triggered:
    """Free text, in which a trigger begins a tag. Attributes as those of TriggeredTags."""

    triggers: tuple[str, ...]
    tags: tuple[Tagged, ...]
    at_least_one: bool
    stop_after_first: bool
    excludes: tuple[str, ...]


def tagged(tag: Tag, rules: Rules) -> Tagged:
    """Return a tag.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: a mark is no special token of the model; it has no end, or too many, or an
            empty one among others.
    """
    given = tag.end if isinstance(tag.end, list) else [tag.end]
    check_count("end of a tag", given, MAX_ENDS)
    ends = tuple(dict.fromkeys(_text(one, rules) for one in given))
    if not ends:
        raise refused("structural_tag has a tag without end; allowed: at least one text, which may be empty")
    if "" in ends and len(ends) > 1:
        raise refused("structural_tag has an empty end among others; allowed: one alone")
    return Tagged(_text(tag.begin, rules), tag.content, ends)


def tags_of(tags: Sequence[Tag], rules: Rules) -> tuple[Tagged, ...]:
    """Return tags. Raises InvalidArgument as `tagged`, and for too many or none."""
    if not tags:
        raise refused("structural_tag has no tags; allowed: at least one")
    check_count("tags", tags)
    return tuple(tagged(one, rules) for one in tags)


def triggered(form: TriggeredTags | TokenTriggeredTags | Dispatch | TokenDispatch, rules: Rules) -> Triggered:
    """Return free text with tags; those of a dispatch end where their contents do.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: as `tags_of`; there are too many triggers or excluded texts.
    """
    if isinstance(form, TriggeredTags | Dispatch):
        excludes = _texts("excludes", form.excludes, rules)
    else:
        excludes = _texts("exclude_tokens", map(Token, form.exclude_tokens), rules)
    if isinstance(form, TriggeredTags | TokenTriggeredTags):
        if isinstance(form, TriggeredTags):
            triggers = _texts("triggers", form.triggers, rules)
        else:
            triggers = _texts("trigger_tokens", map(Token, form.trigger_tokens), rules)
        return Triggered(triggers, tags_of(form.tags, rules), form.at_least_one, form.stop_after_first, excludes)
    check_count("rules", form.rules)
    if isinstance(form, Dispatch):
        tags = tags_of([Tag(text, content, "") for text, content in form.rules], rules)
    else:
        tags = tags_of([Tag(Token(token), content, "") for token, content in form.rules], rules)
    begins = tuple(dict.fromkeys(one.begin for one in tags))
    return Triggered(begins, tags, at_least_one=False, stop_after_first=not form.loop, excludes=excludes)


def check_count(name: str, given: Sequence[object], most: int = MAX_ALTERNATIVES) -> None:
    """Refuse a list that is too long.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    if len(given) > most:
        raise refused(f"structural_tag has {name} with {len(given)} entries; allowed: at most {most}")


def _texts(name: str, given: Iterable[str | Token], rules: Rules) -> tuple[str, ...]:
    marks = list(given)
    check_count(name, marks)
    return tuple(_text(one, rules) for one in marks)


def _text(mark: str | Token, rules: Rules) -> str:
    return mark if isinstance(mark, str) else rules.special(mark.token)
