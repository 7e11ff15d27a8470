"""What an operator reads of a model's core."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from headrace_engine.errors import BadModel, Internal, OutOfMemory
from headrace_engine.model_types import CoreLoss, ModelState
from headrace_engine.service.program.announcer import Announcer
from headrace_proto.pure.log_budget import BURST, PARTIES, LogBudget
from support.clocks.clock import settle
from support.scripted.engine import ScriptedEngine

LOSS = CoreLoss(1, "the core died: killed by signal 9", 100.5)


@pytest.fixture
async def announcing(engine: ScriptedEngine, log: list[Any]):
    """The engine of an announcer, whose model runs."""
    task = asyncio.create_task(Announcer(engine, lines=LogBudget(lambda: 5.0)).run())
    await settle()
    engine.set_state(ModelState.RUNNING, core_epoch=1)
    await settle()
    log.clear()
    yield engine
    task.cancel()
    await asyncio.wait([task])


async def test_a_loss_and_a_restart_are_one_line_each(announcing: ScriptedEngine, log: list[Any]) -> None:
    announcing.set_state(ModelState.RUNNING, core_loss=LOSS)
    announcing.set_state(ModelState.RUNNING, core_epoch=2)
    await settle()
    assert log == [
        {"event": "core_lost", "log_level": "error", "model": "smol", "epoch": 1, "reason": LOSS.reason},
    ]
    announcing.set_state(ModelState.RUNNING, core_loss=None)
    await settle()
    assert log[1:] == [
        {"event": "core_restarted", "log_level": "info", "model": "smol", "epoch": 2, "reason": LOSS.reason},
    ]


async def test_every_loss_has_its_line(announcing: ScriptedEngine, log: list[Any]) -> None:
    for epoch in (1, 2, 3):
        announcing.set_state(ModelState.RUNNING, core_loss=CoreLoss(epoch, "again", 100.5))
    await settle()
    assert [(event["event"], event["epoch"]) for event in log] == [("core_lost", 1), ("core_lost", 2), ("core_lost", 3)]


async def test_f10_installs_that_fail_fill_no_log(announcing: ScriptedEngine, log: list[Any]) -> None:
    """What is no caller's doing is logged all the same."""
    for _ in range(BURST):
        announcing.set_state(ModelState.INSTALLING)
        announcing.set_state(ModelState.FAILED, failure=BadModel("no model"))
        await settle()
    lines = [event for event in log if event["event"] in ("model_state", "model_failed")]
    assert 0 < len(lines) <= BURST // PARTIES
    announcing.set_state(ModelState.INSTALLING)
    announcing.set_state(ModelState.FAILED, failure=Internal("a defect"))
    await settle()
    assert log[-1]["failure"] == "a defect"


async def test_a_model_gone_meanwhile_is_reported_and_the_next_too(announcing: ScriptedEngine, log: list[Any]) -> None:
    announcing.set_state(ModelState.STARTING)
    announcing.set_state(ModelState.RUNNING)
    view = announcing.models.pop("smol")
    await settle()
    announcing.models["smol"] = view
    announcing.set_state(ModelState.STOPPING)
    await settle()
    assert [event["state"] for event in log] == ["STARTING", "RUNNING", "STOPPING"]


@pytest.mark.parametrize("state", [ModelState.FAILED, ModelState.STOPPING])
async def test_a_core_that_is_given_up_was_not_restarted(
    announcing: ScriptedEngine, log: list[Any], state: ModelState
) -> None:
    announcing.set_state(ModelState.RUNNING, core_loss=LOSS)
    announcing.set_state(state, core_loss=None, failure=OutOfMemory("lower one of them"))
    await settle()
    assert "core_restarted" not in [event["event"] for event in log]


@pytest.mark.parametrize(("state", "level"), [(ModelState.INSTALLING, "warning"), (ModelState.STARTING, "error")])
async def test_a_caller_with_bad_files_raises_no_alert(
    announcing: ScriptedEngine, log: list[Any], state: ModelState, level: str
) -> None:
    announcing.set_state(state)
    await settle()
    log.clear()
    announcing.set_state(ModelState.FAILED, failure=BadModel("config.json: it is no JSON"))
    await settle()
    assert [(event["event"], event["log_level"]) for event in log] == [("model_failed", level)]
