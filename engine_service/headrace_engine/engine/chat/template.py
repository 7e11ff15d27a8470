"""Renders a conversation with a model's chat template: sandboxed Jinja, run in the side process of `process`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2

from headrace_engine.chat_types import Chat
from headrace_engine.engine.chat.completeness import ChatTexts, Part, left_out
from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.messages import template_messages, template_tools, template_variables
from headrace_engine.engine.chat.sandbox import sandbox
from headrace_engine.engine.chat.variants import Parts, map_texts
from headrace_engine.errors import InvalidArgument
from headrace_engine.request_types import ConfigWarning

_FINAL = f"\ue002{secrets.randbits(64)}\ue003"
"""Stands where the final message ends while it is rendered to be continued."""

MAX_REASON = 1000
"""Characters of a template's own message that are passed on: a failure must fit into the head of an answer."""

_MAX_NAMED = 20
"""Maximum number of omitted fields that are named in warnings."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a conversation, and warnings about what the template converts or omits."""

    text: str
    warnings: tuple[ConfigWarning, ...] = ()


class ChatTemplate:
    """A compiled chat template.

    Content in parts is given to it as parts, and as one text where it takes that alone; see `chat_forms`.

    Args:
        source: the Jinja text.
        variables: what every rendering sees, such as bos_token.
        field: path of the field to blame for an invalid template.

    Raises:
        InvalidArgument: BAD_TEMPLATE, the text is not valid Jinja.
    """

    def __init__(self, source: str, variables: Mapping[str, str], field: str = "chat") -> None:
        self._variables = dict(variables)
        self._reads_tools = "tools" in source
        try:
            self._template = sandbox().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            text = f"has a syntax error in the chat template, line {error.lineno}: {error.message}"
            raise InvalidArgument.field(field, text, reason="BAD_TEMPLATE") from error
        except Exception as error:  # One that nests too deep, or computes what cannot be computed.
            text = f"has a chat template that cannot be compiled: {_words(error)}"
            raise InvalidArgument.field(field, text, reason="BAD_TEMPLATE") from error

    def render(self, chat: Chat, shield: Shield | None = None) -> Rendered:
        """Return the text of a conversation.

        Args:
            shield: escapes special tokens in messages and tools; None: no escaping.

        Raises:
            InvalidArgument: INVALID_FIELD for a malformed chat; BAD_TEMPLATE with the template's own message.
        """
        shield = shield or Shield()
        messages, tools = template_messages(chat), template_tools(chat)
        texts = ChatTexts(map_texts(messages, shield.mark), map_texts(tools, shield.mark))
        variables = self._variables | {
            "documents": None,  # As transformers has it where there are none.
            **template_variables(chat),
            "add_generation_prompt": _opens_answer(chat),
        }
        one = _OneChat(self._template, variables, continues=bool(chat.continue_final_message))
        try:
            text, texts, absent = one.render(texts)
        except InvalidArgument:
            raise
        except Exception as error:  # a template is the model's code: whatever it raises is its answer
            raise _bad_template(f"the chat template failed: {shield.unmark(_words(error))}") from error
        return Rendered(text, (*_joined(texts), *self._absent(texts, absent)))

    def _absent(self, texts: ChatTexts, absent: list[Part]) -> Iterator[ConfigWarning]:
        tools = [part for part in absent if part.message is None]
        if texts.tools and (not self._reads_tools or len(tools) == len(texts.tools)):
            yield ConfigWarning("chat.tools", "tools have no effect: the model's chat template leaves them out")
            absent = [part for part in absent if part.message is not None]
        for part in absent[:_MAX_NAMED]:
            yield ConfigWarning(part.field, f"{part.field} has no effect: the model's chat template leaves it out")
        if len(absent) > _MAX_NAMED:
            text = f"the model's chat template leaves out {len(absent) - _MAX_NAMED} more"
            yield ConfigWarning("chat.messages", text)


_Found = tuple[str, ChatTexts, list[Part]]


@dataclass(frozen=True, slots=True)
class _OneChat:
    """One chat, rendered as often as it takes to find the form of its contents that the template shows."""

    template: jinja2.Template
    variables: Mapping[str, Any]
    continues: bool

    def render(self, texts: ChatTexts) -> _Found:
        """The text, the form that it was made from, and what the template leaves out of that."""
        try:
            text = self._text(texts)
        except Exception:
            if not texts.in_parts:
                raise
            texts = next(texts.other_forms(texts.in_parts))
            text = self._text(texts)
        best = text, texts, self._left_out(texts, text)
        lost = {part.message for part in best[2] if part.of_content}
        for other in texts.other_forms(lost) if lost else ():
            best = self._better(best, other)
        return best

    def _better(self, best: _Found, other: ChatTexts) -> _Found:
        """The same of another form, where that leaves out less."""
        absent = len(best[2])
        if not absent:
            return best
        try:
            text = self._text(other)
        except Exception:  # It does not take this form.
            return best
        left = self._left_out(other, text)
        return (text, other, left) if len(left) < absent else best

    def _text(self, texts: ChatTexts) -> str:
        messages = _open_final(texts.messages) if self.continues else texts.messages
        text = self._of(messages, texts)
        return _cut_after_final(text) if self.continues else text

    def _left_out(self, texts: ChatTexts, text: str) -> list[Part]:
        if texts.is_seen_in(text):
            return []
        probe, parts = texts.probe()
        try:
            probed = self._of(probe.messages, probe)
        except Exception:  # A template may ask something of texts that signs do not have: then nothing is known.
            return []
        return left_out(parts, probed)

    def _of(self, messages: list[dict[str, Any]], texts: ChatTexts) -> str:
        return self.template.render({**self.variables, "messages": messages, "tools": texts.tools or None})


def _joined(texts: ChatTexts) -> Iterator[ConfigWarning]:
    for index in texts.read_joined()[:_MAX_NAMED]:
        field = f"chat.messages[{index}].content"
        text = "has parts, and the model's chat template takes one text: they are joined with line breaks"
        yield ConfigWarning(field, f"{field} {text}")


def _opens_answer(chat: Chat) -> bool:
    if not chat.continue_final_message:
        return chat.add_generation_prompt is not False
    if chat.add_generation_prompt:
        raise InvalidArgument.field("chat.add_generation_prompt", "= True contradicts continue_final_message = True")
    return False


def _open_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark at the end of the last one. A space behind it shows whether the template trims."""
    *earlier, final = messages
    content = final.get("content")
    if isinstance(content, str):
        return [*earlier, {**final, "content": f"{content}{_FINAL} "}]
    if not isinstance(content, list) or not content or not _is_text(content[-1]):
        raise InvalidArgument.field("chat.continue_final_message", "needs a final message with a text")
    *parts, last = content
    return [*earlier, {**final, "content": Parts([*parts, {**last, "text": f"{last['text']}{_FINAL} "}])}]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _cut_after_final(text: str) -> str:
    part = text.rfind(_FINAL)
    if part < 0:
        raise _bad_template("the chat template does not show the final message, so it cannot be continued")
    trimmed = not text.startswith(" ", part + len(_FINAL))
    return text[:part].rstrip() if trimmed else text[:part]


def _words(error: Exception) -> str:
    """Return an exception's message, or its type if it has none."""
    text = (str(error) or type(error).__name__).encode(errors="replace").decode()
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"


def _bad_template(message: str) -> InvalidArgument:
    return InvalidArgument.field("chat", f"cannot be rendered: {message}", reason="BAD_TEMPLATE")
