"""Parts of grammars in the library's language."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace_engine.guided.refusal import refused
from headrace_engine.guided.schema import read_schema

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_pattern": r"([\x20\t]|\r?\n[\x20\t]{0,16})?",
    "json_allow_general_unicode_escapes": True,
    "lenient": False,
    "coerce_one_of": False,
}
"""How JSON may be written. White space between two tokens is bounded: models fill an unbounded one forever."""

_SCHEMA = "json_schema"
"""What warnings about schemas begin with."""

_MAX_LENGTH = 1 << 20
"""Maximum characters of a grammar's rules."""

_SLASH = re.compile(r"(\\.)|[/\n]", re.DOTALL)
_ESCAPED = {"/": r"\/", "\n": r"\n"}

Part = tuple[str, int | None]
"""A part of a text, and its id if it is a special token."""


class Rules:
    """The rules of one grammar.

    Args:
        specials: the ids of special tokens, by their text: no other text can be one.
        schemas: what warnings call its schemas.

    Attributes:
        warnings: likely mistakes in its schemas.
    """

    def __init__(self, specials: Mapping[str, int], schemas: str = _SCHEMA) -> None:
        self._specials, self._schemas = specials, schemas
        self._pattern = re.compile("|".join(map(re.escape, sorted(filter(None, specials), key=len, reverse=True))))
        self._rules: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._length = 0
        self.warnings: list[str] = []

    def text(self, start: str) -> str:
        """Return the grammar."""
        lines = ["%llguidance {}", f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items())]
        return "\n".join(lines)

    def warn(self, warnings: Sequence[str], called: str = "") -> None:
        """Note likely mistakes in a schema.

        Args:
            called: what they call it; "": as others.
        """
        renamed = [re.sub(rf"^{_SCHEMA}\b", lambda _: called or self._schemas, one) for one in warnings]
        self.warnings += [one for one in renamed if one not in self.warnings]

    def rule(self, body: str) -> str:
        """Return the name of a rule."""
        return self._named("r", body)

    def begin(self) -> str:
        """Return the name of a rule that is given its body by `finish`, and may refer to itself."""
        name = f"r_{len(self._rules)}"
        self._rules[name] = ""
        return name

    def finish(self, name: str, body: str) -> None:
        """Give such a rule its body."""
        self._rules[name] = self._measured(body)

    def free(self, excludes: Sequence[str] = ()) -> str:
        """Return any text without special tokens, in which some texts are not."""
        return self._named("FREE", rf"/(.|\n)*/{self._without(sorted(excludes))}")

    def terminal(self, body: str) -> str:
        """Return the name of a terminal: what it matches is read as a whole."""
        return self._named("T", body)

    def lazy(self, body: str, cuts: Sequence[str] = ()) -> str:
        """Return the name of a rule that matches the shortest text of a terminal.

        Args:
            cuts: what else would match such texts, which are none.
        """
        body = self.terminal(f"({body}) & ~({' | '.join(cuts)})") if cuts else body
        return self._named("lazy", body, "[lazy]")

    def texts(self, texts: Sequence[str]) -> str:
        """Return the name of a terminal that matches one of some texts, which have no special tokens."""
        return self.terminal(" | ".join(map(json.dumps, dict.fromkeys(texts))))

    def pattern(self, expression: str) -> str:
        """Return what matches an expression."""
        return self._named("P", f"/{expression}/")

    def expression(self, expression: str) -> str:
        """Return the name of a terminal that matches an expression of a request, which is not empty."""
        escaped = _SLASH.sub(lambda found: found[1] or _ESCAPED[found[0]], expression)
        return self.pattern(escaped)

    def but(self, texts: Sequence[str], excludes: Sequence[str] = ()) -> str:
        """Return any text without special tokens that begins with none of some texts, as `free`."""
        begun = " | ".join(f"{json.dumps(text)} /(.|\\n)*/" for text in texts)
        return self._named("BUT", rf"/(.|\n)*/ & ~({begun}){self._without(excludes)}")

    def special(self, token: str | int) -> str:
        """Return the text of a special token, by its text or its id.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: there is none.
        """
        if token in self._specials:
            return str(token)
        found = next((text for text, token_id in self._specials.items() if token_id == token), None)
        if found is None:
            shown = json.dumps(token[:64] if isinstance(token, str) else token, ensure_ascii=False)
            raise refused(f"structural_tag has the token {shown}; allowed: special tokens of the model")
        return found

    def special_but(self, texts: Collection[str]) -> str:
        """Return any special token but some; "": there is no other."""
        ids = sorted(token_id for text, token_id in self._specials.items() if text not in texts)
        return f"<[{','.join(map(str, ids))}]>" if ids else ""

    def nested(self, grammar: str) -> str:
        """Return what a grammar of its own derives, written in the library's language."""
        return self.rule(f"%lark {{\n{grammar}\n}}")

    def literal(self, text: str) -> str:
        """Return exactly this text, special tokens included."""
        return " ".join(map(_written, self.parts(text))) or '""'

    def upto(self, mark: str, excludes: Sequence[str] = ()) -> str:
        """Return any text that ends with a mark, which is not in it before, and in which some texts are not."""
        parts = self.parts(mark)
        if not self.is_special(mark):
            return self.lazy(f"{self.free(excludes)} {_written(parts[0])}")
        excludes = sorted({mark, *excludes})
        if parts[0][1] is not None:
            return " ".join([self.free(excludes), *map(_written, parts)])
        # Not lazy: only the special token tells whether a mark has begun.
        begun = self.terminal(rf"/(.|\n)*{literally(parts[0][0])}/{self._without(excludes)}")
        return " ".join([begun, *map(_written, parts[1:])])

    def json(self, schema: Any) -> str:
        """Return JSON that satisfies a schema. Raises InvalidArgument as `schema`."""
        return self.schema(json.dumps(schema))

    def schema(self, text: str, called: str = "") -> str:
        """Return JSON that satisfies a schema.

        Args:
            called: what warnings call it; "": as others.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: it is no schema, or cannot be satisfied.
        """
        read, warnings = read_schema(self._measured(text))
        self.warn(warnings, called)
        return self.rule("%json " + json.dumps({**json.loads(read), "x-guidance": JSON_OPTIONS}))

    def is_special(self, mark: str) -> bool:
        """True if a mark has a special token, and so cannot stand in free text."""
        return any(token_id is not None for _, token_id in self.parts(mark))

    def parts(self, text: str) -> list[Part]:
        """Return the parts of a text."""
        found: list[Part] = []
        at = 0
        for special in self._pattern.finditer(text) if self._specials else ():
            found += [(text[at : special.start()], None)] if special.start() > at else []
            found.append((special[0], self._specials[special[0]]))
            at = special.end()
        return [*found, (text[at:], None)] if at < len(text) else found

    def _without(self, excludes: Sequence[str]) -> str:
        """Return what follows an expression of any text, so that some texts are not in it."""
        return rf" & ~(/(.|\n)*/ {self.texts(excludes)} /(.|\n)*/)" if excludes else ""

    def _named(self, prefix: str, body: str, options: str = "") -> str:
        name = self._names.get((prefix, body))
        if name is None:
            name = self._names[prefix, body] = f"{prefix}_{len(self._rules)}"
            self._rules[name + options] = self._measured(body)
        return name

    def _measured(self, text: str) -> str:
        """Count a text.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: there are too many.
        """
        self._length += len(text)
        if self._length > _MAX_LENGTH:
            what = f"its grammar has more than {_MAX_LENGTH} characters: use fewer or smaller schemas"
            raise refused(f"cannot be enforced: {what}")
        return text


def _written(part: Part) -> str:
    text, token_id = part
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def literally(text: str) -> str:
    """Return an expression that matches exactly a text."""
    return "".join(one if one.isascii() and one.isalnum() else rf"\x{{{ord(one):X}}}" for one in text)
