"""A model's tokenizer and chat template: prompts to ids, ids to text."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace

from headrace_engine.engine.chat_template import ChatTemplate
from headrace_engine.engine.detokenizer import Detokenizer
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.types import Chat, ChatMessage, Detokenized, Tokenized, Warning

INLINE_CHARACTERS = 2_000
"""Longer prompts are tokenised in a worker thread: up to here it takes about a millisecond."""

# Not to be guessed, so that no message can carry the marks itself.
_OPEN, _CLOSE = f"\ue000{secrets.token_hex(8)}:", "\ue001"


class TextProcessor:
    """Everything that knows both text and ids of one model.

    Args:
        bundle: the tokenizer and what its files say of it.
        chat_template: Jinja that replaces the model's own; None: the model's.
    """

    def __init__(self, bundle: TokenizerBundle, chat_template: str | None = None) -> None:
        self._bundle = bundle
        self._special_texts = tuple(bundle.special_texts)
        source = bundle.chat_template if chat_template is None else chat_template
        self._template_source = source
        self._template: ChatTemplate | None = None

    def detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        """A fresh incremental decoder."""
        return Detokenizer(self._bundle.token_bytes, self._bundle.special_ids if skip_special_tokens else frozenset())

    async def tokenize(self, prompt: str | Chat, add_special_tokens: bool | None, max_length: int) -> Tokenized:
        """The ids of a prompt, and the text they were made from.

        Raises:
            InvalidArgument: the chat cannot be rendered, or the text is longer than any prompt of max_length tokens.
        """
        if isinstance(prompt, str):
            self._check_size(prompt, max_length)
            if len(prompt) <= INLINE_CHARACTERS:
                return self._tokenize_text(prompt, add_special_tokens)
            return await asyncio.to_thread(self._tokenize_text, prompt, add_special_tokens)
        if sum(_length(message) for message in prompt.messages) <= INLINE_CHARACTERS:
            return self._tokenize_chat(prompt, max_length)
        return await asyncio.to_thread(self._tokenize_chat, prompt, max_length)

    async def detokenize(self, ids: Sequence[int], skip_special_tokens: bool) -> Detokenized:
        """The text of ids, and the bytes of each."""
        if len(ids) <= INLINE_CHARACTERS:
            return self._detokenize(ids, skip_special_tokens)
        return await asyncio.to_thread(self._detokenize, ids, skip_special_tokens)

    def begins_twice(self, prompt: str | tuple[int, ...] | Chat, add_special_tokens: bool | None) -> tuple[Warning, ...]:
        """A warning, where the tokenizer would add a second begin-of-sequence token to a text."""
        if not isinstance(prompt, str) or not self._skips_bos(prompt, add_special_tokens):
            return ()
        text = f"the text begins with {self._bundle.bos_text!r} already, so the tokenizer's own was not added"
        return (Warning("text", text),)

    def _detokenize(self, ids: Sequence[int], skip_special_tokens: bool) -> Detokenized:
        decoder = self.detokenizer(skip_special_tokens)
        text = "".join(decoder.push(token_id) for token_id in ids) + decoder.flush()
        return Detokenized(text, [self._bundle.token_bytes(token_id) for token_id in ids])

    def _check_size(self, text: str, max_length: int) -> None:
        longest = self._bundle.max_token_bytes * max_length
        size = len(text.encode(errors="surrogatepass"))
        if size > longest:
            raise InvalidArgument.field(
                "prompt",
                f"has {size} bytes, more than {max_length - 1} tokens can hold (at most {longest} bytes)",
                reason="PROMPT_TOO_LONG",
            )

    def _skips_bos(self, text: str, add_special_tokens: bool | None) -> bool:
        bos = self._bundle.bos_text
        return add_special_tokens is None and self._bundle.adds_bos and bool(bos) and text.startswith(bos)

    def _tokenize_text(self, text: str, add_special_tokens: bool | None) -> Tokenized:
        adds = not self._skips_bos(text, add_special_tokens) if add_special_tokens is None else add_special_tokens
        return Tokenized(self._bundle.encode(text, add_special_tokens=adds), text)

    def _tokenize_chat(self, chat: Chat, max_length: int) -> Tokenized:
        shielded = replace(chat, messages=tuple(self._shield(message) for message in chat.messages))
        rendered = self._chat_template().render(shielded)
        ids: list[int] = []
        text = ""
        for piece, is_plain in self._split(rendered):
            self._check_size(piece, max_length)
            if is_plain:
                ids += self._bundle.encode_plain(piece)
            else:
                ids += self._bundle.encode(piece, add_special_tokens=False)
            text += piece
        return Tokenized(ids, text)

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            if not self._template_source:
                text = ": the model has no chat template: send text or ids, or install it with chat_template"
                raise InvalidArgument.field("chat", text, reason="BAD_TEMPLATE")
            self._template = ChatTemplate(self._template_source, self._bundle.template_variables)
        return self._template

    def _shield(self, message: ChatMessage) -> ChatMessage:
        """Mark names of special tokens inside a message, so that they stay text and forge no turns."""
        if isinstance(message.content, str):
            return replace(message, content=self._marked(message.content))
        if message.content is None:
            return message
        return replace(message, content=tuple(self._marked(part) for part in message.content))

    def _marked(self, content: str) -> str:
        if not any(text in content for text in self._special_texts):
            return content
        for number, text in enumerate(self._special_texts):
            content = content.replace(text, f"{_OPEN}{number}{_CLOSE}")
        return content

    def _split(self, rendered: str) -> list[tuple[str, bool]]:
        """Pieces of a rendered chat; True: a special token's name that a message wrote, to be encoded as plain text."""
        pieces: list[tuple[str, bool]] = []
        for part in rendered.split(_OPEN):
            number, mark, rest = part.partition(_CLOSE)
            known = bool(mark) and number.isascii() and number.isdigit() and int(number) < len(self._special_texts)
            if not pieces or not known:
                pieces.append((part if not pieces else _OPEN + part, False))
                continue
            pieces.append((self._special_texts[int(number)], True))
            pieces.append((rest, False))
        return [piece for piece in pieces if piece[0]]


def _length(message: ChatMessage) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(map(len, content))

