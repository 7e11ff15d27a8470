"""The marks that end a part of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.refusal import refused

_ANY = r"/(.|\n)*/"
_SOME = r"/(.|\n)+/"

_MAX_BEGINNINGS = 1 << 16
"""Maximum characters of the beginnings of an excluded text that a mark completes."""


class Marks:
    """Texts of which one follows a part, and is written too.

    Args:
        texts: they, which may begin or end with special tokens; none: the answer ends.

    Attributes:
        heads: those without special tokens.
        begins: with what they begin, as far as that is no special token.
    """

    def __init__(self, rules: Rules, texts: Sequence[str] = ()) -> None:
        self._rules = rules
        self.texts = tuple(texts)
        self._parts = {text: rules.parts(text) for text in texts}
        begun = {text: parts[0][0] for text, parts in self._parts.items() if parts[0][1] is None}
        self.begins = tuple(dict.fromkeys(begun.values()))
        self.heads = tuple(text for text in begun if len(self._parts[text]) == 1)

    def __bool__(self) -> bool:
        return bool(self.texts)

    @cached_property
    def alone(self) -> str:
        """One of them; "": there are none."""
        return self._rules.rule(" | ".join(map(self._rules.literal, self.texts))) if self.texts else ""

    def after(self, text: str, excludes: Sequence[str] = (), *, strict: bool = False) -> str:
        """Return a text that ends with the first of them.

        Args:
            text: name of a terminal that matches it, up to the mark.
            excludes: texts that the terminal does not match, and which no mark may complete.
            strict: the terminal may match marks, which must not be in the text nevertheless.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: a mark completes an excluded text in too many ways.
        """
        found: list[str] = []
        whole: list[str] = []
        for mark, parts in self._parts.items():
            head, token_id = parts[0]
            if token_id is not None:
                found.append(f"{self.none_in(text) if strict else text} {self._rules.literal(mark)}")
            elif len(parts) > 1 or any(one in head for one in excludes):
                found.append(self._alone(text, mark, head, excludes, strict=strict))
            else:
                whole.append(head)
        if whole:
            cuts = self._cuts(excludes, strict=strict)
            found.append(self._rules.lazy(f"{text} {self._rules.texts(whole)}", cuts))
        return self._rules.rule(" | ".join(found))

    def none_in(self, text: str) -> str:
        """Return a terminal that matches what another one does, but for texts that hold one of them."""
        if not self.heads:
            return text
        return self._rules.terminal(f"{text} & ~({_ANY} {self._rules.texts(self.heads)} {_ANY})")

    def _alone(self, text: str, mark: str, head: str, excludes: Sequence[str], *, strict: bool) -> str:
        """Return a text with one mark after it, which has special tokens after a text, or excluded texts within."""
        inner = [one for one in excludes if one in head]
        if begun := [one for within in inner if within != head for one in _completed(head, within)]:
            text = self._rules.terminal(f"{text} & ~({_ANY} {self._rules.texts(begun)})")
        cuts = self._cuts([one for one in excludes if one not in inner], strict=strict)
        if mark == head:
            return self._rules.lazy(f"{text} {self._rules.texts([head])}", cuts)
        # The text may hold the head: what tells the mark apart is the special token after it.
        body = f"{self.none_in(text) if strict else text} {self._rules.texts([head])}"
        whole = f"({body}) & ~({' | '.join(cuts)})" if cuts else body
        return f"{self._rules.terminal(whole)} {self._rules.literal(mark[len(head) :])}"

    def _cuts(self, excludes: Sequence[str], *, strict: bool) -> list[str]:
        """Return what no text with a mark at its end is: one with a mark before, or with an excluded text."""
        cuts = [f"{_ANY} {self._rules.texts(self.heads)} {_SOME}"] if strict and self.heads else []
        return cuts + ([f"{_ANY} {self._rules.texts(excludes)} {_ANY}"] if excludes else [])


def _completed(mark: str, text: str) -> list[str]:
    """Return the beginnings of an excluded text that a mark completes, where it stands after them.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: they are too long together.
    """
    begun, left = [], _MAX_BEGINNINGS
    for length in _overlaps(text, mark):
        left -= len(text) - length
        if left < 0:
            raise refused(f'structural_tag: excludes has "{text[:64]}", which "{mark[:64]}" completes in too many ways')
        begun.append(text[: len(text) - length])
    return begun


def _overlaps(text: str, mark: str) -> Iterator[int]:
    """Yield how many characters at the end of a text begin a mark, the most first, but never the whole text.

    The search of Knuth, Morris and Pratt: linear, as strangers send both.
    """
    mark = mark[: len(text) - 1]
    shorter = [0] * (len(mark) + 1)  # By the length of a beginning of the mark: the next shorter one at its end.
    matched = 0
    for at in range(1, len(mark)):
        matched = _extended(mark, shorter, matched, mark[at])
        shorter[at + 1] = matched
    matched = 0
    for character in text[1:]:
        matched = _extended(mark, shorter, matched, character)
    while matched:
        yield matched
        matched = shorter[matched]


def _extended(mark: str, shorter: list[int], matched: int, character: str) -> int:
    """Return the length of the longest beginning of the mark that ends with a character, after one of `matched`."""
    while matched and (matched == len(mark) or mark[matched] != character):
        matched = shorter[matched]
    return matched + 1 if mark[matched : matched + 1] == character else 0
