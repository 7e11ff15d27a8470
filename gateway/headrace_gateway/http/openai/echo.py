"""Prompts that completions begin with, where `echo` is set."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from headrace import AsyncClient, AsyncResultQueue
from headrace.errors import HeadraceError, InvalidRequestError
from headrace.types import PromptLogprobs
from headrace_proto.pure.limits import MAX_REQUEST_BYTES

from headrace_gateway.http.failures import Failure, failure_of, invalid
from headrace_gateway.http.openai.token_texts import LEAST, CompletionLogprobs, TokenTexts

_WAIT = 30.0
"""Seconds of one wait for the first token of an answer, by when its prompt is computed."""

_PAUSE = 0.05
"""Seconds before the next wait: one ends at once where the sequence has ended, and others of the request have not."""

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


async def echoes_of(
    client: AsyncClient,
    firsts: Sequence[AsyncResultQueue],
    prompts: Sequence[Mapping[str, Any]],
    texts: TokenTexts | None,
    names: Callable[[int], Mapping[str, str]],
) -> list[Echo]:
    """Return the prompts of several requests.

    Args:
        client: asks for them.
        firsts: a sequence of each request.
        prompts: as the requests were started with.
        texts: learns the texts of tokens; None: log-probabilities are not wanted, nor were they asked of the requests.
        names: returns what the API calls the fields of a request, by its number.

    Raises:
        Failure: an engine cannot be asked; the texts are too long for an answer; 503, a request ended before its prompt
            was computed, or engines make different tokens of it.
    """
    found, size = list[Echo](), 0
    for index, (queue, prompt) in enumerate(zip(firsts, prompts, strict=True)):
        try:
            echo = await _echo_of(client, queue, prompt, texts)
        except HeadraceError as error:
            raise failure_of(error, names(index)) from None
        size += len(echo.text.encode()) * len(queue.choices)
        if size > MAX_REQUEST_BYTES:
            text = f"= true gives at least {size} bytes of prompts; allowed: at most {MAX_REQUEST_BYTES}"
            raise invalid("echo", f"{text} (the prompts, times n)")
        found.append(echo)
    return found


async def _echo_of(
    client: AsyncClient, queue: AsyncResultQueue, prompt: Mapping[str, Any], texts: TokenTexts | None
) -> Echo:
    model, ids = queue.request.model_name, prompt.get("ids")
    text = prompt["text"] if ids is None else (await client.detokenize(model, ids, skip_special_tokens=False)).text
    if texts is None:
        return Echo(text, None)
    if ids is None:
        ids = (await client.tokenize(model, **prompt)).ids
        if hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest() != queue.request.prompt_hash:
            raise _different(model)
    await texts.learn_ids({ids[0]})
    found, offsets = CompletionLogprobs(), _Offsets(text)
    found.add(texts.name(ids[0]), None, None, offsets.next(texts.piece(ids[0])))
    while (position := len(found.tokens)) < len(ids):
        part = await _some(client, queue, position)
        if part.position != position or part.ids != ids[position : position + len(part.ids)]:
            raise _different(model)
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
    first = 0  # Position of the first token that can be read.
    while True:
        try:
            found = await client.get_request(
                queue.handle, from_position=first, wait=_WAIT, prompt_logprobs_from=position
            )
        except InvalidRequestError as error:
            first = _first_position(error)
        else:
            if found.prompt_logprobs is not None:
                return found.prompt_logprobs
            if all(one.status.terminal for one in found.sequences):
                text = "the request ended before its prompt was computed; send it again"
                raise Failure(HTTPStatus.SERVICE_UNAVAILABLE, text, "interrupted", retry_after=1.0)
        await asyncio.sleep(_PAUSE)


def _first_position(error: InvalidRequestError) -> int:
    """Return where reading begins after a hand-over, as the refusal of an earlier position says. Raises any other."""
    first = error.details.get("metadata", {}).get("first_position")
    if error.reason != "POSITION_OUT_OF_RANGE" or first is None:
        raise error
    return int(first)


def _different(model: str) -> Failure:
    text = f'the engines make different tokens of the prompt, as with different files of model "{model}"; send it again'
    return Failure(HTTPStatus.SERVICE_UNAVAILABLE, text, "engines_differ", retry_after=1.0)


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
