"""Parts of a request whose form here is another than on the wire: response formats and media."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ResponseFormatKind(StrEnum):
    """Kinds of response formats; the names of the oneof's fields, but for CALLS: a chat's tool_choice asks for it."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """Guided decoding: the output must match.

    Attributes:
        text: the schema, expression or grammar, or JSON for STRUCTURAL_TAG (`guided.tags.forms`) and CALLS
            (`guided.calls.wanted`); empty for the other kinds.
        choices: the strings of CHOICE.
        ebnf: GRAMMAR is in EBNF rather than Lark.
    """

    kind: ResponseFormatKind
    text: str = ""
    choices: tuple[str, ...] = ()
    ebnf: bool = False

    @property
    def schema(self) -> str | None:
        """The schema of a format of JSON; None: it is another one."""
        if self.kind is ResponseFormatKind.JSON_OBJECT:
            return '{"type": "object"}'
        return self.text if self.kind is ResponseFormatKind.JSON_SCHEMA else None


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One piece of media: an encoded file, or ready embeddings as raw bytes with their shape and dtype name."""

    placeholder_id: int | None = None
    data: bytes = b""
    mime_type: str = ""
    embedding_shape: tuple[int, ...] = ()
    embedding_dtype: str = ""
    digest: str = ""
