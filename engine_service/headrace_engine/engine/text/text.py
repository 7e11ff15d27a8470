"""A model's tokenizer and chat template: prompts to ids, ids to text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace_engine.characters.detokenizer import Detokenizer, cut_of_prompt
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.engine.chat.renderer import Renderer
from headrace_engine.engine.config.generation import Generation
from headrace_engine.engine.config.prompt_size import check_size
from headrace_engine.engine.config.stop_fields import stop_size
from headrace_engine.engine.text.answers import Answers
from headrace_engine.engine.text.pieces import encode_pieces
from headrace_engine.engine.text.spellings import SLICE, in_slices, spell_slices, spelling_size, spellings
from headrace_engine.engine.text.stopping import Decoder, StoppingDetokenizer
from headrace_engine.engine.text.stops import stops_of
from headrace_engine.engine.text.tokenizer_files import TokenizerFiles, tokenizer_archive, tokenizer_files
from headrace_engine.engine.work.pool import PoolLimits, WorkPool
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_types import ConfigWarning, Detokenized, Tokenized

T = TypeVar("T")

MIN_CHAT_CHARACTERS = 1 << 20
"""Minimum limit on the characters of a chat, since its template may leave most of them out."""


def _slow_chat(text: str) -> InvalidArgument:
    return InvalidArgument.field("chat", f"cannot be rendered: {text}. Send a shorter one", reason="BAD_TEMPLATE")


CHATS = PoolLimits(1, 256, 60.0, 150.0, _slow_chat, 32 << 20)
"""Limits for one model's chats: its side process renders them one by one, and limits each one's resources."""


class TextProcessor:
    """Tokenization, detokenization and chat rendering for one model. It owns the model's chat renderer.

    Args:
        bundle: the tokenizer and its configuration.
        chat_template: Jinja template that replaces the model's own; None: the model's.
        pools: thread pools for large texts; None: pools of its own.
    """

    def __init__(
        self, bundle: TokenizerBundle, chat_template: str | None = None, pools: WorkPools | None = None
    ) -> None:
        self._bundle = bundle
        self._chat_template = chat_template
        self._rendering = _rendering(bundle, chat_template)
        source = bundle.chat_template if chat_template is None else chat_template
        self._answers = Answers(bundle, source or "", None if chat_template else bundle.tool_template)
        self._pools = pools or WorkPools()
        self._chats = WorkPool("rendering chats", CHATS)

    def check_template(self) -> None:
        """Compile the chat template. Blocking.

        Raises:
            InvalidArgument: BAD_TEMPLATE, there is none, or it is not valid.
        """
        self._renderer().check()

    def close(self) -> None:
        """Refuse further chats and end the side process that renders them."""
        if self._rendering is not None:
            self._rendering.close()

    async def files(self, architecture: str) -> TokenizerFiles:
        """Return the tokenizer as files. `architecture`: of the model."""
        size = len(self._bundle.pieces)
        return await self._pools.on_text("", size, tokenizer_files, self._bundle, self._chat_template, architecture)

    async def archive(self, architecture: str) -> bytes:
        """Return the same files as a zip."""
        size = len(self._bundle.pieces)
        return await self._pools.on_text("", size, tokenizer_archive, self._bundle, self._chat_template, architecture)

    def check_known(self, ids: Sequence[int]) -> None:
        """Refuse ids for which the model has no row; see TokenizerBundle."""
        self._bundle.check_known(ids)

    def detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        """Return a new incremental decoder."""
        return Detokenizer(self._bundle.token_bytes, self._skipped(skip_special_tokens))

    async def decoding(
        self, generation: Generation, prompt: Sequence[int], owner: str = "", kept: frozenset[int] = frozenset()
    ) -> Callable[[], Decoder]:
        """Return a factory of decoders for a request's sequences, which continue its prompt and apply its stops.

        Args:
            owner: owner of the work.
            kept: special ids that stay in the text.
        """
        config = generation.effective
        prepare = partial(stops_of, config, generation.eos_ids, generation.min_new, self._bundle)
        stops = await self._pools.on_text(owner, stop_size(config), prepare)
        skips = config.skip_special_tokens is not False
        token_bytes, skipped = self._bundle.token_bytes, self._skipped(skips) - kept
        start = cut_of_prompt(prompt, token_bytes, skipped)
        if stops is None:
            return partial(Detokenizer, token_bytes, skipped, start)
        return partial(StoppingDetokenizer, stops, token_bytes, skipped, start)

    async def tokenize(
        self, prompt: str | Chat, add_special_tokens: bool | None, max_length: int, owner: str = ""
    ) -> Tokenized:
        """Return the ids of a prompt, the text they were made from, and warnings.

        Args:
            owner: owner of the work; owners are served in turn.

        Raises:
            InvalidArgument: the chat cannot be rendered, or the text is longer than any prompt of max_length tokens.
            ResourceExhausted: QUEUE_FULL, too much text is being prepared.
        """
        if isinstance(prompt, str):
            check_size(prompt, self._max_bytes(max_length), max_length)
            return await self._pools.on_text(owner, len(prompt), self._tokenize_text, prompt, add_special_tokens)
        if add_special_tokens is not None:
            raise InvalidArgument.field("add_special_tokens", "is for text only; the prompt is a chat")
        size = _size(prompt)
        self._check_chat(size, max_length)
        return await self._tokenize_chat(prompt, size, max_length, owner)

    async def in_turn(self, owner: str, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of work on so many ids: here if they are few, else in a thread, where owners have turns."""
        return await self._pools.on_text(owner, size, work, *arguments)

    async def detokenize(self, ids: Sequence[int], skip_special_tokens: bool, owner: str = "") -> Detokenized:
        """Return the text of ids, and the bytes of each."""
        return await self._pools.on_text(owner, len(ids), self._detokenize, ids, skip_special_tokens)

    async def spell(self, words: Sequence[str], owner: str = "") -> tuple[tuple[int, ...], ...]:
        """Return the ids by which words may appear in a text; see `spellings`. Many words are done in slices."""
        size = spelling_size(words)
        if size <= SLICE:
            return await self._pools.on_text(owner, size, spellings, self._bundle, words)
        slices = in_slices(words)
        largest = max(map(spelling_size, slices))
        return await self._pools.on_pieces(owner, size, largest, spell_slices(self._bundle, slices))

    def _max_bytes(self, max_length: int) -> int:
        return self._bundle.max_token_bytes * (max_length - 1)

    def _skipped(self, skip_special_tokens: bool) -> frozenset[int]:
        return self._bundle.special_ids if skip_special_tokens else frozenset()

    def _detokenize(self, ids: Sequence[int], skip_special_tokens: bool) -> Detokenized:
        text = self.detokenizer(skip_special_tokens).decode(ids)
        return Detokenized(text, [self._bundle.token_bytes(token_id) for token_id in ids])

    def _check_chat(self, size: int, max_length: int) -> None:
        limit = max(MIN_CHAT_CHARACTERS, self._max_bytes(max_length))
        if size > limit:
            text = f"has {size} characters; allowed: at most {limit}, whatever the template leaves out"
            raise InvalidArgument.field("chat", text, reason="PROMPT_TOO_LONG")

    def _begins_with_bos(self, text: str) -> bool:
        bos = self._bundle.bos_text
        return self._bundle.adds_bos and bool(bos) and text.startswith(bos)

    def _tokenize_text(self, text: str, add_special_tokens: bool | None) -> Tokenized:
        adds = not self._begins_with_bos(text) if add_special_tokens is None else add_special_tokens
        ids = self._bundle.encode(text, add_special_tokens=adds)
        return Tokenized(ids, text, tuple(self._bos_warnings(text, add_special_tokens)))

    def _bos_warnings(self, text: str, add_special_tokens: bool | None) -> Iterator[ConfigWarning]:
        """Warn about a duplicate begin-of-sequence token. Warnings about a chat come from its template."""
        if add_special_tokens is False or not self._begins_with_bos(text):
            return
        why = f"the text begins with {self._bundle.bos_text!r} already"
        if add_special_tokens:
            yield ConfigWarning("add_special_tokens", f"{why}, and add_special_tokens = True puts another before it")
        else:
            yield ConfigWarning("text", f"{why}, so the tokenizer's own special tokens were not added")

    async def _tokenize_chat(self, chat: Chat, size: int, max_length: int, owner: str) -> Tokenized:
        shown = self._answers.shown(chat)
        work = partial(self._renderer().render, shown, self._max_bytes(max_length), max_length)
        rendered = await self._chats.run(owner, work, size=size)
        pieces = rendered.pieces
        text = "".join(piece for piece, _ in pieces)
        ids = await self._pools.on_text(owner, len(text), encode_pieces, self._bundle, pieces)
        return Tokenized(ids, text, rendered.warnings, self._answers.of(shown, text))

    def _renderer(self) -> Renderer:
        if self._rendering is None:
            text = "cannot be rendered: the model has no chat template: send text or ids, or install it with one"
            raise InvalidArgument.field("chat", text, reason="BAD_TEMPLATE")
        return self._rendering


def _rendering(bundle: TokenizerBundle, chat_template: str | None) -> Renderer | None:
    variables, special = bundle.template_variables, bundle.special_texts
    if chat_template:
        return Renderer(chat_template, None, variables, special, "config.chat_template")
    source = bundle.chat_template if chat_template is None else None
    return Renderer(source, bundle.tool_template, variables, special) if source else None


def _size(chat: Chat) -> int:
    """Return the number of characters of everything in a chat."""
    texts = [*chat.tools, *chat.template_variables, *chat.template_variables.values()]
    return sum(map(len, texts)) + sum(len(text) for message in chat.messages for text in _texts(message))


def _texts(message: ChatMessage) -> list[str]:
    content = message.content if isinstance(message.content, tuple) else (message.content or "",)
    named = [message.role, message.name or "", message.tool_call_id or "", message.extra_json]
    return [
        *named,
        *content,
        *(text for call in message.tool_calls for text in (call.id, call.name, call.arguments_json)),
    ]
