"""Engines that are started again on what another one kept."""

from __future__ import annotations

from contextlib import aclosing

from headrace_engine.model_types import ModelState
from support.engine.rig import Rig


async def rest(rig: Rig) -> dict[str, ModelState]:
    """States of all models once each is what is wanted of it, or failed."""
    views = {view.model_name: view for view in rig.engine.list_models()}
    async with aclosing(rig.engine.watch_model("")) as changes:
        async for view in changes:
            views[view.model_name] = view
            if all(each.state in (each.wanted_state, ModelState.FAILED) for each in views.values()):
                break
    return {name: view.state for name, view in views.items()}
