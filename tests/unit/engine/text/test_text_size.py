"""How much text is taken, and where the work on it is done."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.engine.chat.renderer import Renderer
from headrace_engine.engine.config.generation import Generation
from headrace_engine.engine.text import text as text_module
from headrace_engine.engine.text.text import MIN_CHAT_CHARACTERS, TextProcessor
from headrace_engine.engine.work.pools import INLINE_SIZE, LONG_SIZE
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.sampling_params import SamplingParams
from support.clocks.waiting import LIMIT
from support.models.vocabularies import bundle, byte_level, sentencepiece
from unit.engine.text.texts import LONGEST, refused

BYTES, PIECES = byte_level(), sentencepiece()


def user(content: str | tuple[str, ...], **more: Any) -> Chat:
    return Chat((ChatMessage("user", content, **more),))


class TestSize:
    async def test_a_text_longer_than_any_prompt_is_not_tokenized(self) -> None:
        class Untouchable:
            def encode(self, text: str, **options: bool) -> None:
                raise AssertionError("a prompt that cannot fit was tokenised")

        text = TextProcessor(bundle(BYTES, tokenizer=Untouchable()))
        error = await refused(text, "x" * 20_000_000, longest=100)
        assert error.reason == "PROMPT_TOO_LONG"
        longest = 99 * bundle(BYTES).max_token_bytes
        assert f"has 20000000 characters, more than 99 tokens can hold (at most {longest} bytes)" in error.message
        error = await refused(text, "é" * longest, longest=100)
        assert f"has {2 * longest} bytes, more than 99 tokens can hold (at most {longest} bytes)" in error.message

    async def test_the_longest_prompt_of_the_longest_tokens_passes(self) -> None:
        """The bound never refuses what would fit."""
        text = TextProcessor(bundle(BYTES))
        ids = (await text.tokenize("<|endoftext|>" * 99, None, 100)).token_ids
        assert ids == [0] * 99
        assert (await refused(text, "<|endoftext|>" * 99 + "x", longest=100)).reason == "PROMPT_TOO_LONG"

    async def test_a_chat_is_measured_as_a_whole(self) -> None:
        text = TextProcessor(bundle(BYTES))
        error = await refused(text, user("<|im_end|>" * 1000), longest=100)
        assert error.reason == "PROMPT_TOO_LONG"

    async def test_a_chat_longer_than_any_prompt_is_not_rendered(self) -> None:
        text = TextProcessor(bundle(BYTES, chat_template="{{ raise_exception('rendered') }}"))
        error = await refused(text, Chat((ChatMessage("r" * MIN_CHAT_CHARACTERS, "x"),)), longest=100)
        assert (error.reason, error.violations[0].field) == ("PROMPT_TOO_LONG", "chat")
        assert f"has {MIN_CHAT_CHARACTERS + 1} characters; allowed: at most {MIN_CHAT_CHARACTERS}" in error.message
        assert "rendered" in (await refused(text, user("x" * 10_000), longest=100)).message

    @pytest.mark.parametrize("wrap", [str, user])
    @pytest.mark.parametrize(("size", "elsewhere"), [(INLINE_SIZE, False), (INLINE_SIZE + 1, True)])
    async def test_bc069_long_prompts_are_tokenised_off_the_event_loop(
        self, wrap: Callable[[str], str | Chat], size: int, elsewhere: bool
    ) -> None:
        threads = []

        class Noting:
            def encode(self, text: str, **options: bool) -> Any:
                threads.append(threading.current_thread())
                return BYTES.encode(text, **options)

            def encode_batch_fast(self, texts: list[str], **options: bool) -> list[Any]:
                return [self.encode(text, **options) for text in texts]

        noting = TextProcessor(bundle(BYTES, tokenizer=Noting(), chat_template="{{ messages[0].content }}"))
        await noting.tokenize(wrap("x" * size), None, LONGEST)
        assert [thread is not threading.main_thread() for thread in threads] == [elsewhere]

    async def test_bc069_very_long_prompts_take_one_thread(self) -> None:
        """However many come at once."""
        at_once, most = [0], [0]

        class Counting:
            def encode_batch_fast(self, texts: list[str], **options: bool) -> list[Any]:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
                encoded = BYTES.encode_batch(texts, **options)
                at_once[0] -= 1
                return list(encoded)

        text, prompt = TextProcessor(bundle(BYTES, tokenizer=Counting())), "x" * (LONG_SIZE + 1)
        await asyncio.gather(*(text.tokenize(prompt, None, len(prompt)) for _ in range(4)))
        assert most == [1]


@pytest.mark.parametrize("prompt", ["x" * (LONG_SIZE + 1), user("x")])
async def test_bc069_abandoned_texts_take_one_thread_too(monkeypatch: pytest.MonkeyPatch, prompt: str | Chat) -> None:
    """A thread goes on when its call is cut: those that come next and leave as well may not fill the pool."""
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()
    goes_on = threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        begun.put(None)
        assert goes_on.wait(LIMIT)
        return []

    text = TextProcessor(bundle(BYTES, tokenizer=SimpleNamespace(encode_batch_fast=slow)))
    monkeypatch.setattr(Renderer, "render", slow)
    calls = [asyncio.ensure_future(text.tokenize(prompt, None, 2 * LONG_SIZE)) for _ in range(4)]
    try:
        await asyncio.to_thread(begun.get, timeout=LIMIT)
        for call in calls:
            call.cancel()
            await asyncio.wait([call])
        assert begun.empty(), "the others left before their turn came"
    finally:
        goes_on.set()


@pytest.mark.parametrize(("characters", "elsewhere"), [(INLINE_SIZE, False), (INLINE_SIZE + 1, True)])
async def test_many_stops_are_prepared_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, characters: int, elsewhere: bool
) -> None:
    threads = []

    def noting(*arguments: Any) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(text_module, "stops_of", noting)
    effective = GenerationConfig(stop_words=("x" * characters,))
    await TextProcessor(bundle(BYTES)).decoding(Generation(effective, SamplingParams(), (), 5, 0, ()), ())
    assert [thread is not threading.main_thread() for thread in threads] == [elsewhere]
