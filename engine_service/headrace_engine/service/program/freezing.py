"""Exempts what models bring with them from garbage collection."""

from __future__ import annotations

from headrace_proto.pure.collecting import freeze_objects

from headrace_engine.engine.engine import Engine
from headrace_engine.model_types import ModelState
from headrace_engine.service.failures import closing


async def freeze_models(engine: Engine) -> None:
    """Freeze all objects whenever a model has begun to serve, until cancelled."""
    serving: set[str] = set()
    async with closing(engine.watch_model("")) as views:
        async for view in views:
            if view.state is not ModelState.RUNNING:
                serving.discard(view.model_name)
            elif view.model_name not in serving:
                serving.add(view.model_name)
                freeze_objects()
