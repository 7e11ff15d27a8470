"""The marks that end a part of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.refusal import refused

_ANY = r"/(.|\n)*/"
_SOME = r"/(.|\n)+/"


class Marks:
    """Texts of which one follows a part, and is written too.

    Args:
        texts: they, which may begin or end with special tokens; none: the answer ends.

    Attributes:
        heads: with what they begin, as far as that is no special token.
    """

    def __init__(self, rules: Rules, texts: Sequence[str] = ()) -> None:
        self._rules = rules
        self.texts = tuple(texts)
        self._parts = {text: rules.parts(text) for text in texts}
        firsts = (parts[0] for parts in self._parts.values() if parts)
        self.heads = tuple(dict.fromkeys(text for text, token_id in firsts if token_id is None))

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
            InvalidArgument: BAD_RESPONSE_FORMAT: an excluded text is within a mark that may complete it.
        """
        held = [mark for mark, parts in self._parts.items() if parts[0][1] is not None]
        found = [f"{self.none_in(text) if strict else text} {self._rules.literal(mark)}" for mark in held]
        whole: list[str] = []
        for mark, parts in self._parts.items():
            head, token_id = parts[0]
            inner = [one for one in excludes if one in head] if token_id is None else []
            if token_id is None and (inner or len(parts) > 1):
                others = [one for one in excludes if one not in inner]
                rest = self._rules.literal(mark[len(head) :]) if len(parts) > 1 else ""
                found.append(f"{self._upto(text, [head], others, strict=strict)} {rest}")
                _check_completed(head, inner)
            elif token_id is None:
                whole.append(head)
        if whole:
            found.append(self._upto(text, whole, excludes, strict=strict))
        return self._rules.rule(" | ".join(found))

    def none_in(self, text: str) -> str:
        """Return a terminal that matches what another one does, but for texts that hold one of them."""
        if not self.heads:
            return text
        return self._rules.terminal(f"{text} & ~({_ANY} {self._rules.texts(self.heads)} {_ANY})")

    def _upto(self, text: str, heads: Sequence[str], excludes: Sequence[str], *, strict: bool) -> str:
        cuts = [f"{_ANY} {self._rules.texts(self.heads)} {_SOME}"] if strict else []
        cuts += [f"{_ANY} {self._rules.texts(excludes)} {_ANY}"] if excludes else []
        return self._rules.lazy(f"{text} {self._rules.texts(heads)}", cuts)


def _check_completed(mark: str, excludes: Sequence[str]) -> None:
    """Refuse excluded texts that are within a mark, where one may also begin before the mark and end within it.

    The mark itself may be excluded: what begins it ends the text.
    """
    for text in excludes:
        if text != mark and any(mark.startswith(text[at:]) for at in range(1, len(text))):
            what = f'which the mark "{mark[:64]}" has within, and may complete: exclude a longer text'
            raise refused(f'structural_tag: excludes has "{text[:64]}", {what}')
