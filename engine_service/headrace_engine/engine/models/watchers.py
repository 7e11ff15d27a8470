"""Streams of model views as they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from headrace_engine.model_types import ModelState, ModelView

INTERVAL = 0.1
"""Minimum seconds between two deliveries to one watcher."""


class _Watcher:
    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.pending: dict[str, list[ModelView]] = {}
        self.wake = asyncio.Event()


class Watchers:
    """All watchers of models. A slow watcher gets every state and core loss, but only the newest progress.

    Args:
        sleep: waits between two deliveries.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._watchers: set[_Watcher] = set()

    def publish(self, view: ModelView) -> None:
        """Deliver a changed view to the watchers of its model."""
        for watcher in self._watchers:
            if watcher.model_name not in ("", view.model_name):
                continue
            views = watcher.pending.setdefault(view.model_name, [])
            if views and (views[-1].state, views[-1].core_loss) == (view.state, view.core_loss):
                views.pop()
            views.append(view)
            watcher.wake.set()

    async def watch(
        self, model_name: str, present: Callable[[], Iterable[ModelView]]
    ) -> AsyncGenerator[ModelView, None]:
        """Yield the present views, then changes: of one model until it is released, of all ("") for ever."""
        watcher = _Watcher(model_name)
        self._watchers.add(watcher)
        try:
            known = list(present())
            for view in known:
                yield view
            if model_name and not known:
                return  # It was released between the call and now.
            while True:
                await watcher.wake.wait()
                watcher.wake.clear()
                pending, watcher.pending = watcher.pending, {}
                for view in (view for views in pending.values() for view in views):
                    yield view
                    if model_name and view.state is ModelState.RELEASED:
                        return
                await self._sleep(INTERVAL)
        finally:
            self._watchers.discard(watcher)
