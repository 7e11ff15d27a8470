"""Free text of structural tags, and the triggers that are found in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.marks import Marks
from headrace_engine.guided.tags.texts import check_count
from headrace_engine.guided.tags.triggers import Opening


class FreeText:
    """Free text.

    Args:
        excludes: texts and special tokens that are not in it.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: there are too many; one is empty, or has a special token and more.
    """

    def __init__(self, rules: Rules, excludes: Sequence[str]) -> None:
        check_count("excludes", excludes)
        self._rules = rules
        self._texts: list[str] = []
        self._specials: set[str] = set()
        for one in excludes:
            parts = rules.parts(one)
            if len(parts) != 1:
                what = "a text without special tokens, or one of them alone"
                raise refused(f'structural_tag: excludes has "{one[:64]}"; allowed: {what}')
            ((text, token_id),) = parts
            if token_id is None:
                self._texts.append(text)
            else:
                self._specials.add(text)

    def plain(self) -> str:
        """Return it without special tokens."""
        return self._rules.free(self._texts)

    def any(self) -> str:
        """Return it, special tokens included."""
        special = self.special_but(())
        return f"{self.plain()} ({special} {self.plain()})*" if special else self.plain()

    def upto(self, marks: Marks) -> str:
        """Return it without special tokens, with the first of some marks at its end."""
        return marks.after(self.plain(), self._texts)

    def but(self, texts: Sequence[str]) -> str:
        """Return it without special tokens, where it begins with none of some texts."""
        return self._rules.but(texts, self._texts)

    def special_but(self, texts: Collection[str]) -> str:
        """Return any special token that it may have but some; "": there is no other."""
        return self._rules.special_but({*texts, *self._specials})


class Found:
    """Free text in which triggers are found.

    Args:
        free: the text.
        openings: the triggers.
        text: text without any, with what ends it.
        end: what ends it, alone; "": it goes to the end of the answer, and so may have all special tokens.
    """

    def __init__(self, rules: Rules, free: FreeText, openings: list[Opening], text: str, end: str) -> None:
        self._free, self._openings, self._text, self._end = free, openings, text, end
        called = (f"{free.upto(Marks(rules, [one.trigger]))} {one.tags}" for one in openings)
        self._called = rules.rule(" | ".join(called))
        self._parts = any(one.other for one in openings) and not end

    def all(self) -> str:
        """Return text with any number of tags."""
        if self._parts:
            text = self._free.plain()
            called = [f"{one.mark} {one.tags} {text}" for one in self._openings]
            return f"{text} ({' | '.join([*called, *self._skipped()])})*"
        others = self._others()
        return f"({self._called}{f' | {others}' if others else ''})* {self._text}"

    def first(self) -> str:
        """Return text with one tag at its end, or none."""
        if self._parts:
            called = " | ".join(f"{one.mark} {one.tags}" for one in self._openings)
            return f"{self._free.plain()} ({' | '.join(self._skipped())})* ({called})?"
        others = self._others()
        return f"{f'({others})* ' if others else ''}({self._called} {self._end} | {self._text})"

    def _others(self) -> str:
        """Return text up to a special token that begins no tag."""
        if self._end:
            return ""
        special = self._free.special_but({one.trigger for one in self._openings})
        return f"{self._free.plain()} {special}" if special else ""

    def _skipped(self) -> list[str]:
        """Return special tokens that begin no tag, or are not followed by what makes them begin one."""
        special = self._free.special_but({one.trigger for one in self._openings})
        found = [f"{special} {self._free.plain()}"] if special else []
        return found + [f"{one.mark} {self._free.but(one.other)}" for one in self._openings if one.other]
