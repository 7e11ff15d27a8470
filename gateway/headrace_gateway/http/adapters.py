"""Adapters that callers name as if they were models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace import AsyncClient, ModelState
from headrace.errors import HeadraceError

from headrace_gateway.http.failures import invalid

_LOOK_SECONDS = 1.0
"""Seconds between looks at what there is, however many unknown names are asked for."""


@dataclass(frozen=True)
class Target:
    """What a caller names as a model: a model, or one with an adapter.

    Attributes:
        model: the model.
        adapter: name of the adapter; None: as the request says.
    """

    model: str
    adapter: str | None = None


async def adapters_of(client: AsyncClient, models: Iterable[str]) -> list[tuple[str, str]]:
    """Return the adapters of models as (adapter, model), in order. Models that do not answer have none."""
    names = list(models)
    answers = await asyncio.gather(*(client.list_adapters(name) for name in names), return_exceptions=True)
    found: set[tuple[str, str]] = set()
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, HeadraceError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        found.update((one.name, name) for one in answer if one.name)
    return sorted(found)


class Adapters:
    """Finds what the names of models mean for one caller: names of models, else those of adapters of running models.

    Args:
        client: asks for them.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, client: AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._models: frozenset[str] = frozenset()
        self._adapters: dict[str, list[str]] = {}
        self._looked: float | None = None
        self._looking = asyncio.Lock()

    async def find(self, name: str) -> Target:
        """Return what a name means. One that is unknown is a model's: engines say what is wrong with it.

        Raises:
            Failure: several models have an adapter of this name.
        """
        if name not in self._models and name not in self._adapters:
            await self._look()
        if name in self._models or name not in self._adapters:
            return Target(name)
        models = self._adapters[name]
        if len(models) > 1:
            several = f"is an adapter of several models ({', '.join(models[:8])})"
            raise invalid("model", f'= "{name[:128]}" {several}: set lora_name beside one')
        return Target(models[0], name)

    async def _look(self) -> None:
        async with self._looking:
            if self._looked is not None and self._clock() - self._looked < _LOOK_SECONDS:
                return
            self._looked = self._clock()
            try:
                listed = await self._client.list_models()
            except HeadraceError:
                return  # The start says what is wrong.
            self._models = frozenset(one.model_name for one in listed)
            running = {one.model_name for one in listed if one.state is ModelState.RUNNING}
            adapters: dict[str, list[str]] = {}
            for adapter, model in await adapters_of(self._client, sorted(running)):
                adapters.setdefault(adapter, []).append(model)
            self._adapters = adapters
