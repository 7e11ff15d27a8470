"""Parts the text of an answer, and numbers its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from headrace.types import AcceptedRequest
from headrace_proto.pure.answers.formats import CALLS, machine_of
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Piece, Thought

from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.failures import invalid

_OWN_IDS = {"mistral": 9}
"""Lengths of the ids of calls where templates take no others."""


@dataclass
class CallPart:
    """What is new of a call.

    Attributes:
        index: its number in the answer.
        id: its id, with its first part.
        name: of the function, with its first part.
        arguments: what is new of them.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Part = str | Thought | CallPart
"""A text, a thought, or what is new of a call."""


@dataclass
class Parting:
    """Parts one sequence.

    Args:
        request: the accepted request.
        tools: its tools.
        thoughts: part thoughts; else they stay in the text, with their marks.
        prefix: of the ids of calls.
        sequence: its number.

    Attributes:
        count: calls so far.

    Raises:
        Failure: the model's template shows the tools in no form that is known.
    """

    request: AcceptedRequest
    tools: Tools
    thoughts: bool
    prefix: str
    sequence: int = 0
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        form = self.request.answer_format
        self._calls = form.calls if form is not None else ""
        if self.tools.given and self.tools.mode != "none" and not self._calls:
            text = "are shown by the model's template in no form that is known: name one in tool_parser"
            raise invalid("tools", f"{text} ({', '.join(CALLS)})", "unsupported_value")
        thoughts, opened, or_json = (
            ("", False, False) if form is None else (form.thoughts, form.thought_open, form.or_json)
        )
        shown = not self.thoughts
        self._machine = machine_of(self._calls, thoughts, opened, self.tools.given, or_json=or_json, shown=shown)

    def feed(self, text: str) -> list[Part]:
        """Take more text; return what is certain now."""
        return self._numbered(self._machine.feed(text))

    def end(self) -> list[Part]:
        """Return what is left."""
        return self._numbered(self._machine.end())

    def whole(self, text: str) -> list[Part]:
        """Return the parts of a whole text; those of one call as one."""
        found: list[Part] = []
        for part in [*self.feed(text), *self.end()]:
            last = found[-1] if found else None
            if isinstance(part, CallPart) and isinstance(last, CallPart) and part.index == last.index:
                last.arguments += part.arguments
            elif isinstance(part, str) and isinstance(last, str):
                found[-1] = last + part
            elif isinstance(part, Thought) and isinstance(last, Thought):
                found[-1] = Thought(last.text + part.text)
            else:
                found.append(part)
        return found

    def _numbered(self, pieces: list[Piece]) -> list[Part]:
        found: list[Part] = []
        for piece in pieces:
            if isinstance(piece, CallBegin):
                found.append(CallPart(self.count, piece.id or self._new_id(), piece.name))
                self.count += 1
            elif isinstance(piece, Arguments):
                found.append(CallPart(self.count - 1, arguments=piece.text))
            else:
                found.append(piece)
        return found

    def _new_id(self) -> str:
        """Return an id, the same whichever gateway reads the answer, and how often."""
        digest = sha256(f"{self.request.request_id}/{self.sequence}/{self.count}".encode()).hexdigest()
        length = _OWN_IDS.get(self._calls)
        return f"{self.prefix}{digest[:24]}" if length is None else digest[:length]
