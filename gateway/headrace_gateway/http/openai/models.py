"""`/v1/models`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

import msgspec
from headrace import ModelState
from headrace.errors import HeadraceError
from headrace.model_types import ModelInfo

from headrace_gateway.http.adapters import adapters_of
from headrace_gateway.http.clients import Clients
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import Failure, failure_of

_LAST = 1 << 62
"""Later than any time."""


class Model(msgspec.Struct):
    """A model that takes requests, or an adapter of one.

    Attributes:
        id: its name.
        created: when it began to run, in seconds since 1970; the earliest of all engines.
        parent: of an adapter, the model that it changes; not there for a model.
    """

    id: str
    created: int
    parent: str | msgspec.UnsetType = msgspec.UNSET
    object: Literal["model"] = "model"
    owned_by: Literal["headrace"] = "headrace"


class ModelList(msgspec.Struct):
    """All models that take requests."""

    data: list[Model]
    object: Literal["list"] = "list"


class Models:
    """Describes models.

    Args:
        clients: ask the engines.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def all(self, exchange: Exchange) -> None:
        """Answer with all models that run."""
        await exchange.answer(ModelList(await self._running()))

    async def one(self, exchange: Exchange) -> None:
        """Answer with one of them."""
        name = exchange.request.path_params["name"]
        found = next((model for model in await self._running() if model.id == name), None)
        if found is None:
            raise Failure(HTTPStatus.NOT_FOUND, f'no model "{name[:128]}" runs', "unknown_model", "model")
        await exchange.answer(found)

    async def _running(self) -> list[Model]:
        try:
            models = await self._clients.current.list_models()
        except HeadraceError as error:
            raise failure_of(error, {}) from None
        began: dict[str, int] = {}
        for model in models:
            if model.state is ModelState.RUNNING:
                began[model.model_name] = min(_began(model), began.get(model.model_name, _LAST))
        adapters = await adapters_of(self._clients.current, sorted(began))
        listed = [Model(name, began[name]) for name in sorted(began)]
        return listed + [Model(name, began[parent], parent) for name, parent in adapters if name not in began]


def _began(model: ModelInfo) -> int:
    return 0 if model.state_time is None else int(model.state_time.timestamp())
