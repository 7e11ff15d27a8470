"""Responses of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.compat.answers import Piece
from headrace.types import FinishReason, GeneratedElements

_REASONS = {
    FinishReason.EOS: "stop",
    FinishReason.STOP_WORD: "stop",
    FinishReason.NO_TOKEN_LEFT: "stop",
    FinishReason.MAX_LENGTH: "length",
}


@dataclass
class Response:
    """The answer to a prompt, or, from `stream_infer`, its next piece.

    Attributes:
        text: the text; empty with finish_reason "length" where the prompt leaves no room in the session length.
        generate_token_len: number of generated tokens so far, EOS or a stop included.
        input_token_len: number of prompt tokens, those of the chat template included.
        session_id: index of the prompt in the call.
        finish_reason: "stop" after EOS, a stop or the end of a response format; "length" at a maximum; another end has
            the name of its `headrace.FinishReason`, such as "DEADLINE". None while the answer goes on.
        token_ids: ids of the generated tokens.
        logprobs: [token] {id: logprob}, the alternatives that `logprobs` of the GenerationConfig asked for and the
            token's own; None: not asked for.
    """

    text: str
    generate_token_len: int
    input_token_len: int
    session_id: int
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list, repr=False)
    logprobs: list[dict[int, float]] | None = field(default=None, repr=False)

    @property
    def index(self) -> int:
        """Index of the prompt in the call."""
        return self.session_id

    def extend(self, piece: Response) -> None:
        """Append the next piece of the same answer."""
        self.text += piece.text
        self.generate_token_len = piece.generate_token_len
        self.finish_reason = piece.finish_reason
        self.token_ids += piece.token_ids
        if piece.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *piece.logprobs]


def response_of(piece: Piece) -> Response:
    """Return a piece of a started request as a Response.

    Raises:
        HeadraceError: the request failed.
    """
    queue, elements = piece.queue, piece.elements
    if piece.error is not None:
        raise piece.error
    assert queue is not None
    prompt, generated = queue.request.prompt_token_count, queue.GeneratedLength()
    if elements is None:
        reason = queue.finish_reason
        return Response("", generated, prompt, piece.index, _REASONS.get(reason, reason) if reason else None)
    length = elements.position + len(elements.ids_from_generate)
    ids = elements.ids_from_generate
    return Response(elements.text, length, prompt, piece.index, None, ids, _logprobs(elements))


def _logprobs(elements: GeneratedElements) -> list[dict[int, float]] | None:
    if not elements.token_logprobs_list:
        return None
    alternatives = elements.log_probs_list or [[]] * len(elements.token_logprobs_list)
    tokens = zip(elements.ids_from_generate, elements.token_logprobs_list, alternatives, strict=True)
    return [{**dict(others), token: logprob} for token, logprob, others in tokens]
