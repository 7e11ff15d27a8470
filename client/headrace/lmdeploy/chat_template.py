"""LMDeploy's ChatTemplateConfig: a chat template made of pieces of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headrace_proto.pure.strict_json import BadJson, read_json

from headrace._values.refusals import invalid, unknown_key
from headrace.compat.counterparts import not_supported
from headrace.errors import InvalidRequestError

_PIECES = ("system", "meta_instruction", "eosys", "user", "eoh", "assistant", "eoa", "tool", "eotool", "separator")


@dataclass
class ChatTemplateConfig:
    """A chat template in the place of the model's own.

    A conversation becomes `system meta_instruction eosys` if it begins with no system message, then each message
    between what begins and what ends its role, then `assistant`. Without pieces the model's own template is used.

    Attributes:
        model_name: None, "base" for no template at all, or any name for the template that the pieces are. LMDeploy's
            own named templates are not here: the model's files bring the template of the model.
        system: begin of a system message.
        meta_instruction: content of the system message where the conversation has none.
        eosys: end of a system message.
        user: begin of a user message.
        eoh: end of a user message.
        assistant: begin of an assistant message.
        eoa: end of an assistant message, followed by the separator.
        separator: what follows eoa.
        tool: begin of a tool message.
        eotool: end of a tool message.
        capability: "chat", or "completion": strings are sent as they are. Default "chat".
        stop_words: strings that end each answer, beside those of its GenerationConfig.

    Raises:
        InvalidRequestError: a value has the wrong type, or no counterpart here.
    """

    model_name: str | None = None
    system: str | None = None
    meta_instruction: str | None = None
    eosys: str | None = None
    user: str | None = None
    eoh: str | None = None
    assistant: str | None = None
    eoa: str | None = None
    separator: str | None = None
    tool: str | None = None
    eotool: str | None = None
    capability: str | None = None
    stop_words: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "stop_words" and value is not None and not isinstance(value, str):
                raise invalid(each.name, value, "a string")
        if self.capability not in (None, "chat", "completion"):
            raise not_supported("capability", self.capability, 'write "chat" or "completion"')
        if self.model_name not in (None, "base") and not self.has_pieces:
            advice = "leave it out for the template in the model's files, or give the template's pieces"
            raise not_supported("model_name", self.model_name, advice)

    @classmethod
    def from_json(cls, file_or_string: str) -> ChatTemplateConfig:
        """Return the template that a JSON file, or a text of JSON, describes.

        Args:
            file_or_string: path of a file with one JSON object, or the object itself; its keys are the fields.

        Raises:
            InvalidRequestError: it is neither, or has an unknown key or a wrong value.
            OSError: the file cannot be read.
        """
        if not isinstance(file_or_string, str):
            raise invalid("file_or_string", file_or_string, "the path of a JSON file, or a text of JSON")
        text = file_or_string
        if not text.lstrip().startswith("{"):
            text = Path(file_or_string).read_text(encoding="utf-8")
        try:
            values = read_json(text)
        except BadJson as error:
            raise InvalidRequestError(f"file_or_string {error}") from error
        if not isinstance(values, dict):
            raise invalid("file_or_string", values, "one JSON object")
        known = [each.name for each in fields(cls)]
        for name in values.keys() - set(known):
            raise unknown_key("file_or_string", name, known)
        return cls(**values)

    @property
    def has_pieces(self) -> bool:
        """True if it is a template; else the model's own is used."""
        return any(getattr(self, name) is not None for name in _PIECES)

    @property
    def raw(self) -> bool:
        """True if prompts are sent without any template."""
        return self.capability == "completion" or (self.model_name == "base" and not self.has_pieces)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return a conversation as the text of a prompt.

        Raises:
            InvalidRequestError: a message has no such role, or content that is no text.
        """
        begins = {"system": self.system, "user": self.user, "assistant": self.assistant, "tool": self.tool}
        closed = (self.eoa or "") + (self.separator or "")
        ends = {"system": self.eosys, "user": self.eoh, "assistant": closed, "tool": self.eotool}
        parts = []
        if messages and messages[0].get("role") != "system":
            parts += [self.system, self.meta_instruction, self.eosys]
        for index, message in enumerate(messages):
            role = message.get("role")
            if role not in begins:
                raise invalid(f"messages[{index}].role", role, '"system", "user", "assistant" or "tool"')
            parts += [begins[role], _text(message.get("content"), index), ends[role]]
        continued = bool(closed and messages) and messages[-1]["role"] == "assistant"
        parts = parts[:-1] if continued else [*parts, self.assistant]
        return "".join(part or "" for part in parts)


def _text(content: Any, index: int) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise invalid(f"messages[{index}].content", content, "text, or a list of parts with text")
    return "".join(part["text"] for part in parts)
