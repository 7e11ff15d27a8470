"""What begins the tags of a text: texts, special tokens, or special tokens with a text after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.texts import Tagged, Triggered


@dataclass(frozen=True)
class Opening:
    """A trigger, or all that begin with the same special token.

    Attributes:
        trigger: the text, or that of the special token.
        mark: the special token, in a grammar; "": there is none.
        other: texts of which one must follow the special token; empty: it begins a tag by itself.
        tags: what follows trigger or special token.
    """

    trigger: str
    mark: str
    other: tuple[str, ...]
    tags: str


def openings_of(form: Triggered, rules: Rules, after: Callable[[Tagged], str]) -> list[Opening]:
    """Return what begins the tags of a form.

    Args:
        after: returns what follows the first mark of a tag.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: a tag begins with no trigger, or with several; a trigger begins no tag.
    """
    _check(form)
    texts: dict[str, list[str]] = {}
    specials: dict[str, list[tuple[str, str]]] = {}
    for tag in form.tags:
        trigger = _whole(next(one for one in form.triggers if tag.begin.startswith(one)), tag.begin, rules)
        (first, token_id), *rest = rules.parts(trigger)
        if token_id is None:
            if rest:
                what = "has a special token after text; allowed: text alone, or a special token first"
                raise refused(f'structural_tag: trigger "{trigger[:64]}" {what}')
            texts.setdefault(trigger, []).append(f"{rules.literal(tag.begin[len(trigger) :])} {after(tag)}")
            continue
        follows = rest[0][0] if rest and rest[0][1] is None else ""
        specials.setdefault(first, []).append((follows, f"{rules.literal(tag.begin[len(first) :])} {after(tag)}"))
    found = [Opening(text, "", (), rules.rule(" | ".join(bodies))) for text, bodies in texts.items()]
    for first, bodies in specials.items():
        after_mark = {text for text, _ in bodies}
        other = () if "" in after_mark else tuple(sorted(after_mark))
        if other and texts:
            what = f'"{first[:64]}{other[0][:64]}" and "{next(iter(texts))[:64]}"'
            raise refused(f"structural_tag: triggers {what} exclude each other: begin all with special tokens, or none")
        found.append(Opening(first, rules.literal(first), other, rules.rule(" | ".join(body for _, body in bodies))))
    return found


def _check(form: Triggered) -> None:
    """Refuse triggers that cannot say which tag begins."""
    used: set[str] = set()
    for tag in form.tags:
        found = [one for one in form.triggers if tag.begin.startswith(one)]
        if len(set(found)) != 1:
            what = f"begins with {len(set(found))} of the triggers; allowed: exactly one"
            raise refused(f'structural_tag: tag "{tag.begin[:64]}" {what}')
        used.update(found)
    for trigger in form.triggers:
        if not trigger:
            raise refused("structural_tag has an empty trigger; allowed: texts")
        if trigger not in used:
            raise refused(f'structural_tag: trigger "{trigger[:64]}" begins no tag')
        inner = next((one for one in used if one != trigger and one in trigger), None)
        if inner is not None:
            raise refused(f'structural_tag: trigger "{trigger[:64]}" has "{inner[:64]}" within, which comes first')


def _whole(trigger: str, begin: str, rules: Rules) -> str:
    """Return a trigger up to the end of the special token in which it ends, if it does."""
    at = 0
    for text, token_id in rules.parts(begin):
        at += len(text)
        if token_id is not None and at - len(text) < len(trigger) < at:
            return begin[:at]
    return trigger
