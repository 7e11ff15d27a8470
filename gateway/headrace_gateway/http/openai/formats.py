"""What answers must look like: as `response_format` of chats and completions says it, and as vLLM's fields do."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from headrace_proto.pure.grammar_notation import is_ebnf
from headrace_proto.pure.limits import MAX_PARTS_BYTES
from headrace_proto.pure.strict_json import BadJson, read_json

from headrace_gateway.http.failures import invalid

HARMLESS: dict[str, Any] = {"guided_decoding_backend": ("auto", "guidance")}
"""Values of vLLM's fields that change nothing here."""

REFUSED = {"guided_whitespace_pattern": ""}
"""Fields of vLLM that are not supported."""


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A schema that the answer must satisfy. It is always enforced, whatever `strict` says."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""What vLLM calls its kinds of response formats."""

_OLDER = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""Kinds of vLLM's older fields."""

_WANTED: dict[str, tuple[tuple[str, ...], ...]] = {
    "text": ((),),
    "json_object": ((),),
    "json_schema": (("json_schema",),),
    "regex": (("regex",),),
    "choice": (("choices",),),
    "grammar": (("grammar",),),
    "structural_tag": (("triggers", "structures"), ("format",)),
}
"""What belongs to each type of response formats: one of these."""

_PARTS = tuple(dict.fromkeys(name for wanted in _WANTED.values() for names in wanted for name in names))


class TaggedStructure(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """JSON between two marks."""

    begin: str
    schema: dict[str, Any] | bool
    end: str


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the answer must look like. The types regex, choice and grammar are Headrace's own.

    The type structural_tag is vLLM's and SGLang's: triggers and structures, or format.
    """

    type: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]
    json_schema: JsonSchema | None = None
    regex: str | None = None
    choices: list[str] | None = None
    grammar: str | None = None
    syntax: Literal["lark", "ebnf"] | None = None
    triggers: list[str] | None = None
    structures: list[TaggedStructure] | None = None
    format: dict[str, Any] | None = None

    def config(self) -> dict[str, Any] | None:
        """Return it as the generation config has it; None: free text.

        Raises:
            Failure: its parts do not fit its type.
        """
        given = tuple(name for name in _PARTS if getattr(self, name) is not None)
        wanted = _WANTED[self.type]
        if given not in wanted:
            needs = " or ".join(" and ".join(names) for names in wanted) or "nothing else"
            raise invalid(
                "response_format", f'with type "{self.type}" needs {needs}, and has {", ".join(given) or "nothing"}'
            )
        if self.syntax is not None and self.grammar is None:
            problem = f'= "{self.syntax}" is set beside type "{self.type}"; allowed: beside type "grammar"'
            raise invalid("response_format.syntax", problem)
        if self.json_schema is not None:
            return {"type": "json_schema", "json_schema": self.json_schema.schema}
        if self.grammar is not None:
            return {"type": "grammar", "text": self.grammar, "syntax": (self.syntax or "lark").upper()}
        if self.type == "text":
            return None
        return {"type": self.type} | {name: msgspec.to_builtins(getattr(self, name)) for name in given}


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the answer must look like, as vLLM takes it: one of the first six.

    Attributes:
        json: a JSON Schema, or one as JSON text.
        regex: an expression that matches the whole answer.
        choice: the answers of which it is one.
        grammar: a grammar, in EBNF where it has `::=`, else in Lark.
        json_object: any JSON object; false is unset.
        structural_tag: a response format of the type structural_tag, as JSON text.
        disable_any_whitespace: only false is supported.
        disable_additional_properties: only false is supported.
        whitespace_pattern: is not supported.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def wanted(self) -> tuple[str, str, Any]:
        """Return the path of what is given, its kind, and it.

        Raises:
            Failure: not exactly one is given, or an option is not supported.
        """
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, name):
                raise invalid(
                    f"structured_outputs.{name}", "= true is not supported; allowed: false", "unsupported_value"
                )
        if self.whitespace_pattern is not None:
            raise invalid("structured_outputs.whitespace_pattern", "is not supported", "unsupported_parameter")
        found = [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]
        if len(found) != 1:
            problem = f"has {' and '.join(found) or 'none of its kinds'}; allowed: one of {', '.join(_KINDS)}"
            raise invalid("structured_outputs", problem)
        return f"structured_outputs.{found[0]}", found[0], getattr(self, found[0])


class Formatted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the answer must look like: response_format, or what vLLM calls it. One of these fields."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structural_tag: str | None = None

    def format_config(self) -> dict[str, Any] | None:
        """Return it as the generation config has it; None: free text.

        Raises:
            Failure: several fields say it, or one is wrong.
        """
        found: list[tuple[str, dict[str, Any] | None]] = []
        if self.response_format is not None and (config := self.response_format.config()) is not None:
            found.append(("response_format", config))
        given = [] if self.structured_outputs is None else [self.structured_outputs.wanted()]
        given += [(name, kind, value) for name, kind in _OLDER.items() if (value := getattr(self, name)) is not None]
        found += [(name, _config_of(name, kind, value)) for name, kind, value in given]
        if len(found) > 1:
            raise invalid(found[1][0], f"is set beside {found[0][0]}: give one of them")
        return found[0][1] if found else None

    def format_path(self) -> str:
        """Return the path of the field that says it. Raises Failure as `format_config`, which checks whole values."""
        if self.structured_outputs is not None:
            return self.structured_outputs.wanted()[0]
        return next((name for name in _OLDER if getattr(self, name) is not None), "response_format")


class _StructureText(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    begin: str
    schema: msgspec.Raw
    end: str


class _TagText(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A structural tag in JSON text. The parts that the engine takes as text stay text."""

    type: Literal["structural_tag"]
    format: msgspec.Raw = msgspec.Raw()
    triggers: list[str] | None = None
    structures: list[_StructureText] | None = None

    def config(self) -> dict[str, Any]:
        """Return it as the generation config has it."""
        found: dict[str, Any] = {"type": "structural_tag", "triggers": self.triggers}
        if (text := bytes(self.format).decode()) not in ("", "null"):
            found["format"] = text
        if self.structures is not None:
            found["structures"] = [
                {"begin": one.begin, "schema": bytes(one.schema).decode(), "end": one.end} for one in self.structures
            ]
        return found


def _config_of(name: str, kind: str, value: Any) -> dict[str, Any]:
    """Return one of vLLM's kinds as the generation config has it. Raises Failure: a structural tag is none."""
    match kind:
        case "json":
            return {"type": "json_schema", "json_schema": value}
        case "regex":
            return {"type": "regex", "regex": value}
        case "choice":
            return {"type": "choice", "choices": value}
        case "grammar":
            return {"type": "grammar", "text": value, "syntax": "EBNF" if is_ebnf(value) else "LARK"}
        case "structural_tag":
            return _tag(name, value)
        case _:
            return {"type": "json_object"}


def _tag(name: str, text: str) -> dict[str, Any]:
    if (size := len(text.encode())) > MAX_PARTS_BYTES:
        raise invalid(name, f"has {size} bytes; allowed: at most {MAX_PARTS_BYTES}")
    try:
        found = msgspec.json.decode(text, type=_TagText)
        read_json(text)  # Of a key that is given twice msgspec takes the last value.
        return found.config()
    except BadJson as error:
        raise invalid(name, str(error)) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(name, f"is no structural tag as JSON text: {str(error)[:200]}") from None
