"""Prompts that completions begin with, where `echo` is set."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from headrace import AsyncClient, AsyncResultQueue
from headrace.types import PromptLogprobs
from headrace_proto.pure.limits import MAX_REQUEST_BYTES

from headrace_gateway.http.failures import Failure, invalid
from headrace_gateway.http.openai.token_texts import LEAST, CompletionLogprobs, TokenTexts

_WAIT = 30.0
"""Seconds of one wait for the first token of an answer, by when its prompt is computed."""


MAX_ENTRIES = 500_000
"""Maximum log-probabilities of the prompts in one answer: each is some 30 bytes of it."""

_PORTION = 64
"""Tokens after which other tasks have a turn."""


@dataclass(frozen=True)
class Echo:
    """A prompt.

    Attributes:
        logprobs: log-probabilities of its tokens; None: they are not wanted.
    """

    text: str = ""
    logprobs: CompletionLogprobs | None = None

    def begin(self) -> CompletionLogprobs:
        """Return log-probabilities to which those of an answer can be added."""
        found = CompletionLogprobs()
        if self.logprobs is not None:
            found.extend(self.logprobs)
        return found


def check_entries(firsts: Sequence[AsyncResultQueue], each: int) -> None:
    """Refuse log-probabilities of prompts that are too many: every choice has those of its prompt.

    Args:
        firsts: a sequence of each request.
        each: how many a token has.

    Raises:
        Failure: it names the number, and the limit.
    """
    entries = each * sum(queue.request.prompt_token_count * len(queue.choices) for queue in firsts)
    if entries > MAX_ENTRIES:
        text = f"= true with logprobs gives {entries} log-probabilities of prompts; allowed: at most {MAX_ENTRIES}"
        raise invalid("echo", f"{text} (tokens of the prompts, times n, times logprobs + 1)")


def check_texts(firsts: Sequence[AsyncResultQueue], echoes: Sequence[Echo]) -> None:
    """Refuse prompts whose texts are too long for an answer. Raises Failure: it names the size, and the limit."""
    pairs = zip(firsts, echoes, strict=True)
    size = sum(len(echo.text.encode()) * len(queue.choices) for queue, echo in pairs)
    if size > MAX_REQUEST_BYTES:
        text = f"= true gives {size} bytes of prompts; allowed: at most {MAX_REQUEST_BYTES}"
        raise invalid("echo", f"{text} (the prompts, times n)")


async def echo_of(
    client: AsyncClient, queue: AsyncResultQueue, prompt: dict[str, Any], texts: TokenTexts | None
) -> Echo:
    """Return the prompt of a request.

    Args:
        client: asks for it.
        queue: a sequence of the request.
        prompt: as the request was started with.
        texts: learns the texts of tokens; None: log-probabilities are not wanted, nor were they asked of the request.

    Raises:
        HeadraceError: an engine cannot be asked.
        Failure: 503, the request ended before its prompt was computed.
    """
    model, ids = queue.request.model_name, prompt.get("ids")
    text = prompt["text"] if ids is None else (await client.detokenize(model, ids, skip_special_tokens=False)).text
    if texts is None:
        return Echo(text, None)
    if ids is None:
        ids = (await client.tokenize(model, **prompt)).ids
    await texts.learn_ids({ids[0]})
    found, offsets = CompletionLogprobs(), _Offsets(text)
    found.add(texts.name(ids[0]), None, None, offsets.next(texts.piece(ids[0])))
    while len(found.tokens) < len(ids):
        part = await _some(client, queue, len(found.tokens))
        await texts.learn_ids({*part.ids, *(one for top in part.log_probs_list for one, _ in top)})
        rows = zip(part.ids, part.token_logprobs_list, part.log_probs_list, strict=True)
        for number, (token_id, logprob, top) in enumerate(rows):
            if number % _PORTION == 0:
                await asyncio.sleep(0)
            offset = offsets.next(texts.piece(token_id))
            found.add(texts.name(token_id), max(logprob, LEAST), texts.named(top), offset)
    return Echo(text, found)


async def _some(client: AsyncClient, queue: AsyncResultQueue, position: int) -> PromptLogprobs:
    """Return log-probabilities of a prompt from a position on, once there are any."""
    while True:
        found = await client.get_request(queue.handle, from_position=0, wait=_WAIT, prompt_logprobs_from=position)
        if found.prompt_logprobs is not None:
            return found.prompt_logprobs
        if all(one.status.terminal for one in found.sequences):
            text = "the request ended before its prompt was computed; send it again"
            raise Failure(HTTPStatus.SERVICE_UNAVAILABLE, text, "interrupted", retry_after=1.0)


class _Offsets:
    """Finds the characters at which the tokens of a text begin. Those that are not in it, as a first one, take none."""

    def __init__(self, text: str) -> None:
        self._left, self._at = memoryview(text.encode()), 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def next(self, piece: bytes) -> int:
        """Return where the next token begins."""
        at = self._at
        for part in (piece, piece.removeprefix(b" ")):  # Some tokenizers put a space before a text.
            if part and self._left[: len(part)] == part:
                self._left = self._left[len(part) :]
                self._at += len(self._decoder.decode(part))
                break
        return at
