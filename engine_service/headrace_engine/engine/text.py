"""A model's tokenizer and chat template: prompts to ids, ids to text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from headrace_engine.engine.chat_template import ChatTemplate
from headrace_engine.engine.detokenizer import Detokenizer
from headrace_engine.engine.generation import Generation
from headrace_engine.engine.shield import Shield
from headrace_engine.engine.spellings import spellings
from headrace_engine.engine.stopping import Decoder, StoppingDetokenizer
from headrace_engine.engine.stops import stop_size, stops_of
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_types import Chat, ChatMessage, ConfigWarning, Detokenized, Tokenized

INLINE_CHARACTERS = 2_000
"""Longer prompts are tokenised in a worker thread: up to here it takes about a millisecond."""

PART_CHARACTERS = 100
"""What a message, a part of one or a tool call costs beside its text, in characters."""

MIN_CHAT_CHARACTERS = 1 << 20
"""Characters that a chat may have, however short its prompt must be: its template may leave most of them out."""


class TextProcessor:
    """Everything that knows both text and ids of one model.

    Args:
        bundle: the tokenizer and what its files say of it.
        chat_template: Jinja that replaces the model's own; None: the model's.
    """

    def __init__(self, bundle: TokenizerBundle, chat_template: str | None = None) -> None:
        self._bundle = bundle
        self._shield = Shield(bundle.special_texts)
        self._template_source = bundle.chat_template if chat_template is None else chat_template
        self._template: ChatTemplate | None = None

    def detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        """A fresh incremental decoder."""
        return Detokenizer(self._bundle.token_bytes, self._skipped(skip_special_tokens))

    async def decoding(self, generation: Generation) -> Callable[[], Decoder]:
        """Makes the decoders of a request's sequences, which stop where it asks for that."""
        config = generation.effective
        prepare = partial(stops_of, config, generation.eos_ids, generation.min_new, self._bundle)
        stops = prepare() if stop_size(config) <= INLINE_CHARACTERS else await asyncio.to_thread(prepare)
        skips = config.skip_special_tokens is not False
        if stops is None:
            return partial(self.detokenizer, skips)
        return partial(StoppingDetokenizer, stops, self._bundle.token_bytes, self._skipped(skips))

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
        if add_special_tokens is not None:
            raise InvalidArgument.field("add_special_tokens", "is for text only; the prompt is a chat")
        size, parts = _size(prompt)
        self._check_chat(size, max_length)
        if size + PART_CHARACTERS * parts <= INLINE_CHARACTERS:
            return self._tokenize_chat(prompt, max_length)
        return await asyncio.to_thread(self._tokenize_chat, prompt, max_length)

    async def detokenize(self, ids: Sequence[int], skip_special_tokens: bool) -> Detokenized:
        """The text of ids, and the bytes of each."""
        if len(ids) <= INLINE_CHARACTERS:
            return self._detokenize(ids, skip_special_tokens)
        return await asyncio.to_thread(self._detokenize, ids, skip_special_tokens)

    async def spell(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The ids that words may come as in a text; see `spellings`."""
        if sum(len(word) + PART_CHARACTERS for word in words) <= INLINE_CHARACTERS:
            return spellings(self._bundle, words)
        return await asyncio.to_thread(spellings, self._bundle, words)

    def begins_twice(self, prompt: str | Chat, add_special_tokens: bool | None) -> tuple[ConfigWarning, ...]:
        """A warning, where a text brings the begin-of-sequence token that the tokenizer adds as well."""
        if not isinstance(prompt, str) or add_special_tokens is False or not self._brings_bos(prompt):
            return ()
        text = f"the text begins with {self._bundle.bos_text!r} already"
        if add_special_tokens:
            return (
                ConfigWarning("add_special_tokens", f"{text}, and add_special_tokens = True puts another before it"),
            )
        return (ConfigWarning("text", f"{text}, so the tokenizer's own special tokens were not added"),)

    def _skipped(self, skip_special_tokens: bool) -> frozenset[int]:
        return self._bundle.special_ids if skip_special_tokens else frozenset()

    def _detokenize(self, ids: Sequence[int], skip_special_tokens: bool) -> Detokenized:
        text = self.detokenizer(skip_special_tokens).decode(ids)
        return Detokenized(text, [self._bundle.token_bytes(token_id) for token_id in ids])

    def _check_chat(self, size: int, max_length: int) -> None:
        limit = max(MIN_CHAT_CHARACTERS, self._bundle.max_token_bytes * (max_length - 1))
        if size > limit:
            text = f"has {size} characters; allowed: at most {limit}, whatever the template leaves out"
            raise InvalidArgument.field("chat", text, reason="PROMPT_TOO_LONG")

    def _check_size(self, text: str, max_length: int) -> None:
        longest = self._bundle.max_token_bytes * (max_length - 1)
        size, unit = len(text), "characters"
        try:
            if size <= longest:  # A text that is far too long is not even encoded.
                size, unit = len(text.encode()), "bytes"
        except UnicodeEncodeError as error:
            place = f"half of a surrogate pair at character {error.start}"
            raise InvalidArgument.field("prompt", f"holds {place}, which is no text") from error
        if size > longest:
            raise InvalidArgument.field(
                "prompt",
                f"has {size} {unit}, more than {max_length - 1} tokens can hold (at most {longest} bytes)",
                reason="PROMPT_TOO_LONG",
            )

    def _brings_bos(self, text: str) -> bool:
        bos = self._bundle.bos_text
        return self._bundle.adds_bos and bool(bos) and text.startswith(bos)

    def _tokenize_text(self, text: str, add_special_tokens: bool | None) -> Tokenized:
        adds = not self._brings_bos(text) if add_special_tokens is None else add_special_tokens
        return Tokenized(self._bundle.encode(text, add_special_tokens=adds), text)

    def _tokenize_chat(self, chat: Chat, max_length: int) -> Tokenized:
        pieces = self._shield.split(self._chat_template().render(chat, self._shield))
        text = "".join(piece for piece, _ in pieces)
        self._check_size(text, max_length)
        ids: list[int] = []
        for number, (piece, is_plain) in enumerate(pieces):
            ids += self._bundle.encode_plain(piece) if is_plain else self._encode(piece, begins=number == 0)
        return Tokenized(ids, text)

    def _encode(self, piece: str, *, begins: bool) -> list[int]:
        """The ids of a piece of a text. Some tokenizers put a space before a text: not where a piece goes on."""
        if begins:
            return self._bundle.encode(piece, add_special_tokens=False)
        anchor = self._bundle.special_texts[0]  # Where there are several pieces there are special tokens.
        return self._bundle.encode(anchor + piece, add_special_tokens=False)[1:]

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            if not self._template_source:
                text = "cannot be rendered: the model has no chat template: send text or ids, or install it with one"
                raise InvalidArgument.field("chat", text, reason="BAD_TEMPLATE")
            self._template = ChatTemplate(self._template_source, self._bundle.template_variables)
        return self._template


def _size(chat: Chat) -> tuple[int, int]:
    """Characters of everything that a chat says, and the number of its messages, parts, tool calls and tools."""
    texts = [*chat.tools, *chat.template_variables, *chat.template_variables.values()]
    parts = len(chat.tools) + len(chat.template_variables)
    for message in chat.messages:
        texts += _texts(message)
        parts += 1 + len(message.tool_calls) + (len(message.content) if isinstance(message.content, tuple) else 0)
    return sum(map(len, texts)), parts


def _texts(message: ChatMessage) -> list[str]:
    content = message.content if isinstance(message.content, tuple) else (message.content or "",)
    named = [message.role, message.name or "", message.tool_call_id or "", message.extra_json]
    return [
        *named,
        *content,
        *(text for call in message.tool_calls for text in (call.id, call.name, call.arguments_json)),
    ]
