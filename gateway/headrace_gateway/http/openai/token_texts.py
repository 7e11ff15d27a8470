"""Log-probabilities with the texts of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec
from headrace import AsyncClient
from headrace.types import GeneratedElements

LEAST = -9999.0
"""What stands for the logarithm of zero, which JSON does not have."""


class TopLogprob(msgspec.Struct):
    """A token that could have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token, and those that could have been instead."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a part of a chat's answer."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities of a part of a completion, one entry a token; the first token of a prompt has none."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def add(self, token: str, logprob: float | None, top: dict[str, float] | None, offset: int) -> None:
        """Add those of the token that follows."""
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def extend(self, more: CompletionLogprobs) -> None:
        """Add those of the tokens that follow."""
        self.tokens += more.tokens
        self.token_logprobs += more.token_logprobs
        self.top_logprobs += more.top_logprobs
        self.text_offset += more.text_offset


class TokenTexts:
    """Texts of the tokens of one request, asked for once each.

    Args:
        client: asks for them.
        model: the model.
    """

    def __init__(self, client: AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._pieces: dict[int, bytes] = {}

    async def learn(self, elements: GeneratedElements) -> None:
        """Ask for the texts of an element's tokens, as far as they are not known."""
        await self.learn_ids({*elements.ids_from_generate, *(one for top in elements.log_probs_list for one, _ in top)})

    async def learn_ids(self, ids: AbstractSet[int]) -> None:
        """Ask for the texts of tokens, as far as they are not known."""
        new = sorted(ids - self._pieces.keys())
        if new:
            answer = await self._client.detokenize(self._model, new, skip_special_tokens=False)
            self._pieces.update(zip(new, answer.pieces, strict=True))

    def chat(self, elements: GeneratedElements) -> ChatLogprobs:
        """Return the log-probabilities of an element whose texts were learned, as chats have them."""
        return ChatLogprobs(
            [
                TokenLogprob(*self._entry(token_id, logprob), [TopLogprob(*self._entry(*one)) for one in top])
                for token_id, logprob, top in _rows(elements)
            ]
        )

    def completion(self, elements: GeneratedElements, offset: int) -> CompletionLogprobs:
        """Return the log-probabilities of an element whose texts were learned, as completions have them.

        Args:
            elements: what was read.
            offset: characters of the text before it.
        """
        found = CompletionLogprobs()
        for token_id, logprob, top in _rows(elements):
            text, value, _ = self._entry(token_id, logprob)
            found.add(self.name(token_id), value, self.named(top), offset)
            offset += len(text)
        return found

    def named(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Return the alternatives of a token by their names."""
        return {self.name(one): max(chance, LEAST) for one, chance in top}

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of a token that was learned."""
        return self._pieces[token_id]

    def _entry(self, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        piece = self._pieces[token_id]
        return piece.decode(errors="replace"), max(logprob, LEAST), list(piece)

    def name(self, token_id: int) -> str:
        """Return the text of a token, or its bytes, so that no two tokens have the same name for lack of a text."""
        piece = self._pieces[token_id]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _rows(elements: GeneratedElements) -> Iterable[tuple[int, float, list[tuple[int, float]]]]:
    """Yield id, log-probability and alternatives of each token."""
    tops = elements.log_probs_list or [[]] * len(elements.ids_from_generate)
    return zip(elements.ids_from_generate, elements.token_logprobs_list, tops, strict=True)
