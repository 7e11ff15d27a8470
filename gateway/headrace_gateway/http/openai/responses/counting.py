"""`/v1/responses/input_tokens`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from headrace.errors import HeadraceError

from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import failure_of
from headrace_gateway.http.generation import Generations
from headrace_gateway.http.openai.responses.request import HARMLESS, REFUSED, CountRequest


class InputTokens(msgspec.Struct):
    """Tokens of the input of a response."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Counting:
    """Counts the tokens of the input of a response.

    Args:
        generations: knows the models.
        before: returns the conversation that a stored response ends.
    """

    def __init__(self, generations: Generations, before: Callable[[str | None], list[dict[str, Any]]]) -> None:
        self._generations, self._before = generations, before

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with their number."""
        request = await exchange.read(CountRequest, HARMLESS, REFUSED)
        if request.text is not None and request.text.format is not None:
            request.text.format.config()  # It counts for nothing, and may be wrong.
        prompt = request.prompt(self._before(request.previous_response_id))
        async with exchange.attended():
            try:
                model = await self._generations.model_of(request.model)
                found = await self._generations.client.tokenize(model, **prompt)
            except HeadraceError as error:
                raise failure_of(error, request.names()) from None
            await exchange.answer(InputTokens(len(found.ids)))
