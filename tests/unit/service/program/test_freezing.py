"""Each model that serves is exempt from garbage collection."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.model_types import ModelState
from headrace_engine.service.program import freezing
from support.clocks.clock import settle
from support.scripted.engine import ScriptedEngine


async def test_a_model_is_frozen_whenever_it_begins_to_serve(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    engine.set_state(ModelState.INITIAL)
    monkeypatch.setattr(freezing, "freeze_objects", lambda: seen.append("frozen"))
    task = asyncio.create_task(freezing.freeze_models(engine))
    await settle()
    for state in ("STARTING", "RUNNING", "RUNNING", "STOPPING", "RUNNING"):
        seen.append(state)
        engine.set_state(ModelState(state))
        await settle()
    task.cancel()
    await asyncio.wait([task])
    assert seen == ["STARTING", "RUNNING", "frozen", "RUNNING", "STOPPING", "RUNNING", "frozen"]
