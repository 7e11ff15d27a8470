"""Prompts that completions begin with: asked for again after a hand-over, from engines that agree, and in bounds."""

from __future__ import annotations

import hashlib
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.errors import InvalidRequestError
from headrace.types import GenerateStatus, PromptLogprobs
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.openai.completions import CompletionRequest
from headrace_gateway.http.openai.echo import Echo, echoes_of
from headrace_gateway.http.openai.token_texts import TokenTexts
from headrace_proto.pure.limits import MAX_REQUEST_BYTES

IDS = [72, 105, 33]
REQUEST: Any = CompletionRequest(model="smol", prompt=["Hi!", "Hi!"], logprobs=0, echo=True)


def piece(position: int, ids: list[int]) -> PromptLogprobs:
    """Log-probabilities of a part of a prompt."""
    return PromptLogprobs(position, ids, [-1.0] * len(ids), [[] for _ in ids])


def queue(ids: list[int] = IDS, choices: int = 1) -> Any:
    """A sequence of a request with these ids as its prompt."""
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
    request = SimpleNamespace(model_name="smol", prompt_hash=digest)
    return SimpleNamespace(handle="e1/a/b", request=request, choices=[None] * choices)


class Engines:
    """A client of engines, whose tokens are bytes. It answers `get_request` with what comes next, the last for ever."""

    def __init__(self, *answers: PromptLogprobs | Exception | None, status: GenerateStatus | None = None) -> None:
        self.answers = list(answers)
        self.status = status or GenerateStatus.Generating
        self.asked: list[tuple[int, int]] = []
        self.detokenized = 0

    async def tokenize(self, model: str, text: str, add_special_tokens: bool | None) -> Any:
        return SimpleNamespace(ids=list(text.encode()))

    async def detokenize(self, model: str, ids: list[int], *, skip_special_tokens: bool) -> Any:
        self.detokenized += 1
        return SimpleNamespace(text=bytes(ids).decode(), pieces=[bytes([one]) for one in ids])

    async def get_request(self, handle: str, *, from_position: int, wait: float, prompt_logprobs_from: int) -> Any:
        self.asked.append((from_position, prompt_logprobs_from))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        sequences = [SimpleNamespace(status=self.status), SimpleNamespace(status=self.status)]
        return SimpleNamespace(prompt_logprobs=answer, sequences=sequences)


async def echoes(engines: Engines, *queues: Any) -> list[Echo]:
    """The echoes of text prompts with log-probabilities."""
    client: Any = engines
    prompts = [{"text": "Hi!", "add_special_tokens": None}] * len(queues)
    return await echoes_of(client, queues, prompts, TokenTexts(client, "smol"), REQUEST.names)


def out_of_range(**facts: str) -> InvalidRequestError:
    return InvalidRequestError("from_position", reason="POSITION_OUT_OF_RANGE", details={"metadata": facts})


async def test_after_a_handover_reading_begins_where_it_can() -> None:
    """The new engine's log has no token that was delivered before; its log of the prompt is whole."""
    engines = Engines(piece(1, [105]), out_of_range(first_position="5"), None, piece(2, [33]))
    (echo,) = await echoes(engines, queue())
    assert echo.logprobs is not None
    assert echo.logprobs.tokens == ["H", "i", "!"]
    assert engines.asked == [(0, 1), (0, 2), (5, 2), (5, 2)]


async def test_the_end_of_a_request_ends_the_wait() -> None:
    engines = Engines(None, status=GenerateStatus.GenerateInterrupted)
    with pytest.raises(Failure, match="ended before its prompt was computed") as caught:
        await echoes(engines, queue())
    assert caught.value.code == 503
    assert len(engines.asked) == 1


@pytest.mark.parametrize(
    ("ids", "answer"),
    [
        ([72, 105], piece(1, [105])),
        ([72, 105, 34], piece(1, [105])),
        (IDS, piece(2, [33])),
        (IDS, piece(1, [105, 34])),
    ],
)
async def test_tokens_of_other_files_are_told(ids: list[int], answer: PromptLogprobs) -> None:
    """Prompts are tokenized at any engine, and computed at one."""
    with pytest.raises(Failure, match='different files of model "smol"') as caught:
        await echoes(Engines(answer), queue(ids))
    assert (caught.value.code, caught.value.reason) == (503, "engines_differ")


async def test_an_error_names_the_prompt_that_it_is_about() -> None:
    details = {"field_violations": [{"field": "token_ids", "description": "is wrong"}]}
    engines = Engines(InvalidRequestError("token_ids is wrong", details=details))
    with pytest.raises(Failure) as caught:
        await echoes(engines, queue(), queue())
    assert (caught.value.field, str(caught.value)) == ("prompt[0]", "prompt[0] is wrong")


async def test_a_position_beyond_a_prompt_is_no_handover() -> None:
    with pytest.raises(Failure) as caught:
        await echoes(Engines(out_of_range(prompt_length="1")), queue())
    assert caught.value.reason == "position_out_of_range"


async def test_texts_beyond_an_answer_are_not_asked_for() -> None:
    engines = Engines()
    client: Any = engines
    prompts = [{"ids": [72] * (MAX_REQUEST_BYTES // 8192)}] * 8
    queues = [queue(choices=3072) for _ in prompts]
    with pytest.raises(Failure, match=f"gives at least {9 * MAX_REQUEST_BYTES // 8} bytes of prompts"):
        await echoes_of(client, queues, prompts, None, REQUEST.names)
    assert engines.detokenized == 3
