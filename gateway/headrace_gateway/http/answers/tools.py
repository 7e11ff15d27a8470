"""The tools of a request, and which of them are called, for every API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tools:
    """The tools of a request, and which of them the model calls.

    Attributes:
        given: the tools, as templates take them.
        mode: "auto", "none" or "required".
        names: the only ones that may be called; empty: all.
        parallel: an answer may have several calls.
        strict: names of those whose arguments are enforced.
        format: how calls are written; None: as the template shows.
    """

    given: Sequence[Mapping[str, Any]] = ()
    mode: str = "auto"
    names: Sequence[str] = ()
    parallel: bool = True
    strict: Sequence[str] = ()
    format: str | None = None

    def prompt(self) -> dict[str, Any]:
        """Return what the client is given of them."""
        found: dict[str, Any] = {"keep_marks": True, "tool_format": self.format}
        if not self.given or self.mode == "none":
            return found
        choice = {"mode": self.mode, "names": self.names, "parallel": self.parallel, "strict": self.strict}
        return found | {"tools": self.given, "tool_choice": choice}
