"""`/v1/embeddings`."""

from __future__ import annotations

import base64
import struct
from typing import Any, Literal

import msgspec
from headrace.errors import HeadraceError

from headrace_gateway.http.clients import Clients
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import failure_of, invalid

HARMLESS: dict[str, Any] = {"user": None}
"""Values of fields that change nothing here; None: any value."""

REFUSED = {"dimensions": ": the vectors have the model's hidden size"}
"""Fields that are not supported, and why."""

_NAMES = {"prompts": "input", "inputs": "input", "model_name": "model"}

MAX_INPUTS = 64
"""Maximum inputs of one request, as of the contract's Embed."""


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Texts to embed. The fields from `pooling` on are Headrace's own."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    add_special_tokens: bool | None = None
    priority: int | None = None
    lora_name: str | None = None

    def inputs(self) -> list[Any]:
        """Return each input, a text or ids.

        Raises:
            Failure: there are none or too many, or their forms are mixed.
        """
        given: Any = self.input
        if isinstance(given, str) or (given and all(isinstance(one, int) for one in given)):
            given = [given]
        if not 1 <= len(given) <= MAX_INPUTS:
            raise invalid("input", f"has {len(given)} inputs; allowed: 1 to {MAX_INPUTS}")
        for number, one in enumerate(given):
            if isinstance(one, int) or not one:
                raise invalid(f"input[{number}]", "mixes token ids with inputs" if one else "is empty")
        return list(given)


class Embedding(msgspec.Struct):
    """The embedding of one input."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    """The embeddings of all inputs."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class Embeddings:
    """Embeds texts.

    Args:
        clients: ask the engines.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def __call__(self, exchange: Exchange) -> None:
        """Embed the inputs of one request."""
        request = await exchange.read(EmbeddingRequest, HARMLESS, REFUSED)
        pooling: Any = request.pooling.upper()
        async with exchange.attended():
            model, adapter = request.model, request.lora_name
            if adapter is None:
                target = await self._clients.adapters.find(model)
                model, adapter = target.model, target.adapter
            try:
                found = await self._clients.current.embed(
                    model,
                    request.inputs(),
                    pooling=pooling,
                    normalize=request.normalize,
                    add_special_tokens=request.add_special_tokens,
                    priority=request.priority,
                    lora_name=adapter,
                )
            except HeadraceError as error:
                raise failure_of(error, _NAMES) from None
            tokens = sum(one.prompt_token_count for one in found)
            write = _base64 if request.encoding_format == "base64" else list
            data = [Embedding(index, write(one.values)) for index, one in enumerate(found)]
            await exchange.answer(EmbeddingList(data, request.model, EmbeddingUsage(tokens, tokens)))


def _base64(values: list[float]) -> str:
    """Return numbers as little-endian float32, in base64."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
