"""Where the parts of a text stand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.forms import Repeat
from headrace_engine.guided.tags.marks import Marks

MAX_REPEATS = 2**31 - 1
"""Maximum number of `repeat`."""

MAX_FEWEST = 4096
"""Maximum `min` of `repeat`, multiplied with those of the repeats around it: of some 6,000 the parser gives up."""


@dataclass(frozen=True)
class Place:
    """Where a part stands.

    Attributes:
        follows: the marks of which one follows it, and is written with it; None: what follows is not known.
        around: the marks that end the innermost tag around it.
        depth: number of parts that it is within.
        times: how often it comes at least, by the repeats around it.
    """

    follows: Marks | None
    around: Marks
    depth: int = 0
    times: int = 1

    @property
    def end(self) -> str:
        """One of the marks that follow, in a grammar; "": there are none, or they are not known."""
        return self.follows.alone if self.follows else ""

    def inner(self) -> Place:
        """Return the place of a part of this one, which ends where it does."""
        return replace(self, depth=self.depth + 1)

    def before(self, times: int = 1) -> Place:
        """Return the place of a part of this one, after which another may come.

        Args:
            times: how often it comes at least.
        """
        return replace(self, follows=None, depth=self.depth + 1, times=self.times * times)

    def within(self, ends: Marks) -> Place:
        """Return the place of what a tag holds."""
        return replace(self, follows=ends, around=ends, depth=self.depth + 1)

    def times_of(self, one: Repeat) -> str:
        """Return how often a part is repeated, in the library's language; "": it does not come.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: a number is out of range.
        """
        if not (0 <= one.min <= MAX_REPEATS and (one.max == -1 or one.min <= one.max <= MAX_REPEATS)):
            what = f"0 to {MAX_REPEATS}, min at most max, or max = -1"
            raise refused(f"structural_tag has repeat with min = {one.min} and max = {one.max}; allowed: {what}")
        if self.times * one.min > MAX_FEWEST:
            around = f", {self.times} times by the repeats around it" if self.times > 1 else ""
            raise refused(
                f"structural_tag has repeat with min = {one.min}{around}; allowed: at most {MAX_FEWEST} in all"
            )
        if one.max == -1:
            return f"{{{one.min},}}"
        return f"{{{one.min},{one.max}}}" if one.max else ""
