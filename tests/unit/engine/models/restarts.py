"""Engines that are started again on what another one kept."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

from headrace_engine.engine.models.state_store import FILE
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


def saved(folder: Path) -> dict[str, str]:
    """Wanted states by name, as they are on disk."""
    entries = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return {entry["config"]["model_name"]: entry["wanted"] for entry in entries}


async def restart(rig: Rig, folder: Path, **options: Any) -> None:
    """The engine goes away, and another one comes up with the same folder."""
    await rig.engine.close()
    await rig.new_engine(state_dir=folder, **options).start()
