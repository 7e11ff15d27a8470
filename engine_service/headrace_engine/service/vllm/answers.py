"""Conversion of results to vLLM's messages: chunks as tokens come, and a whole answer at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as wire

from headrace_engine.errors import Internal
from headrace_engine.result_types import Elements, EndRecord, FinishReason, ReadResult, StopKind
from headrace_engine.token_types import PromptLogprobs, TopLogprobs

_REASONS = {
    FinishReason.EOS: "stop",
    FinishReason.STOP_WORD: "stop",
    FinishReason.NO_TOKEN_LEFT: "stop",
    FinishReason.MAX_LENGTH: "length",
}
"""Names of reasons in vLLM; the others are "abort"."""


class Answer:
    """The messages of one Generate.

    Args:
        prompt: the ids of the prompt.
        streams: send chunks too.
        stop_token_ids: those of the request.
        asks_prompt: the request asks for log-probabilities of the prompt.
    """

    def __init__(
        self, prompt: Sequence[int], *, streams: bool, stop_token_ids: Sequence[int], asks_prompt: bool
    ) -> None:
        self._prompt, self._streams, self._stop_ids = prompt, streams, stop_token_ids
        self._sequences: dict[int, wire.GenerateComplete] = {}
        self._input: wire.InputLogProbs | None = None
        self._input_sent: set[int] = set()
        if asks_prompt:
            self._input = wire.InputLogProbs(token_ids=prompt[:1])
            self._input.token_logprobs.add()
            self._input.top_logprobs.add()

    def take(self, index: int, result: ReadResult) -> Iterator[Any]:
        """Yield the messages that a result of a sequence makes."""
        if result.prompt is not None:
            self._add_prompt(result.prompt)
        whole = self._sequences.setdefault(index, wire.GenerateComplete(index=index, prompt_tokens=len(self._prompt)))
        if result.elements is not None:
            _add_elements(whole, result.elements)
            if self._streams and result.elements.token_ids:
                yield wire.GenerateResponse(chunk=self._chunk(whole, result.elements))
        if result.end is not None:
            yield wire.GenerateResponse(complete=self._complete(whole, result.end))

    def _chunk(self, whole: wire.GenerateComplete, elements: Elements) -> wire.GenerateStreamChunk:
        chunk = wire.GenerateStreamChunk(
            token_ids=elements.token_ids,
            prompt_tokens=whole.prompt_tokens,
            completion_tokens=len(whole.output_ids),
            cached_tokens=whole.cached_tokens,
            index=whole.index,
        )
        if elements.token_logprobs is not None:
            _add_logprobs(chunk.output_logprobs, elements)
        if self._input is not None and whole.index not in self._input_sent:
            self._input_sent.add(whole.index)
            chunk.input_logprobs.CopyFrom(self._input)
        return chunk

    def _complete(self, whole: wire.GenerateComplete, end: EndRecord) -> wire.GenerateComplete:
        if end.finish_reason in (FinishReason.ERROR, FinishReason.ENGINE_LOST):
            raise end.error or Internal("the engine failed on this request")
        whole.completion_tokens = len(whole.output_ids)
        whole.finish_reason = _REASONS.get(end.finish_reason, "abort")
        if end.stop is not None and end.stop.kind is StopKind.STOP_TOKEN_IDS:
            whole.matched_token_id = self._stop_ids[end.stop.index]
        elif end.stop is not None:
            whole.matched_stop_str = end.stop.text
        whole.spec_accepted_tokens = end.stat.accepted_tokens or 0
        whole.spec_draft_tokens = end.stat.drafted_tokens or 0
        if self._input is not None:
            whole.input_logprobs.CopyFrom(self._input)
        return whole

    def _add_prompt(self, piece: PromptLogprobs) -> None:
        assert self._input is not None, "a piece comes where it was asked for"
        self._input.token_ids.extend(piece.token_ids)
        self._input.token_logprobs.extend(wire.InputTokenLogProb(value=one) for one in piece.token_logprobs)
        self._input.top_logprobs.extend(_tops(piece.top_logprobs, len(piece.token_ids)))


def _add_elements(whole: wire.GenerateComplete, elements: Elements) -> None:
    whole.output_ids.extend(elements.token_ids)
    if elements.prefix is not None:
        whole.cached_tokens = elements.prefix.prefix_cache_len
    if elements.token_logprobs is not None:
        _add_logprobs(whole.output_logprobs, elements)


def _add_logprobs(message: wire.OutputLogProbs, elements: Elements) -> None:
    message.token_ids.extend(elements.token_ids)
    message.token_logprobs.extend(elements.token_logprobs or ())
    message.top_logprobs.extend(_tops(elements.top_logprobs, len(elements.token_ids)))


def _tops(tops: TopLogprobs | None, tokens: int) -> Iterator[wire.TopLogProbs]:
    """Yield the most likely ids of each token; none where none were asked for."""
    if tops is None:
        return
    for begin in range(0, tokens * tops.count, tops.count):
        end = begin + tops.count
        yield wire.TopLogProbs(values=tops.logprobs[begin:end], token_ids=tops.ids[begin:end])
