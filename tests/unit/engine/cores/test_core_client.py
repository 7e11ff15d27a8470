"""The front half's end of a core: starting it, and every way in which it ends."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.config import ModelFormat
from headrace_engine.engine.cores.core_client import CoreClient
from headrace_engine.engine.cores.outputs import Outputs
from headrace_engine.engine.results.statistics import StepHistory
from headrace_engine.errors import BadModel, HeadraceError, Internal, InvalidArgument, OutOfMemory
from headrace_engine.ipc.commands import EndSequence
from headrace_engine.ipc.messages import CoreReady
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.model_types import ModelProgress
from headrace_engine.stat_types import CoreStat, Counters
from support.clocks.clock import FakeClock, settle
from support.scripted.core import READY, ScriptedCore, ScriptedLauncher

PLAN = CorePlan("/models/smol", ModelFormat.HF)


class Rig:
    def __init__(self) -> None:
        self.launcher = ScriptedLauncher()
        self.launcher.ready_at_once = None
        clock = FakeClock()
        self.outputs = Outputs(clock, StepHistory(clock))
        self.reports: list[ModelProgress] = []
        self.ends: list[HeadraceError] = []
        self.client = CoreClient(self.launcher, self.outputs, self.reports.append, self.ends.append)

    @property
    def core(self) -> ScriptedCore:
        return self.launcher.core

    async def launch(self) -> asyncio.Task[CoreReady]:
        launching = asyncio.create_task(self.client.launch(PLAN))
        await settle()
        return launching

    async def ready(self) -> None:
        launching = await self.launch()
        self.core.ready()
        await launching


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_launch_returns_when_the_core_is_warm(rig: Rig) -> None:
    launching = await rig.launch()
    assert rig.core.plan is PLAN
    rig.core.progress(5, 10)
    await settle()
    assert not launching.done()
    assert [(report.bytes_done, report.bytes_total) for report in rig.reports] == [(5, 10)]
    rig.core.ready()
    assert await launching is READY
    assert rig.ends == []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("BAD_MODEL", BadModel),
        ("OUT_OF_MEMORY", OutOfMemory),
        ("INVALID_FIELD", InvalidArgument),
        ("NOT_SUPPORTED", InvalidArgument),
        ("ENGINE_FAULT", Internal),
        ("SOMETHING_NEW", Internal),
    ],
)
async def test_a_failure_of_the_start_is_raised_once_with_its_reason(
    rig: Rig, reason: str, kind: type[HeadraceError]
) -> None:
    launching = await rig.launch()
    rig.core.fail(reason, "lower one of them")
    with pytest.raises(kind, match="lower one of them") as caught:
        await launching
    assert caught.value.reason == (reason if kind is not Internal else "ENGINE_FAULT")
    assert rig.ends == []


@pytest.mark.parametrize("message", ["config.device_list = [7]: there are 2", "device_list = [7]: there are 2"])
async def test_a_wrong_field_is_named(rig: Rig, message: str) -> None:
    launching = await rig.launch()
    rig.core.fail("INVALID_FIELD", message, "config.device_list")
    with pytest.raises(InvalidArgument) as caught:
        await launching
    assert caught.value.message == message
    (violation,) = caught.value.violations
    assert (violation.field, violation.description) == ("config.device_list", "= [7]: there are 2")


async def test_a_core_that_dies_before_it_is_ready_fails_the_start(rig: Rig) -> None:
    launching = await rig.launch()
    rig.core.die("killed by signal 9")
    with pytest.raises(Internal, match="the core died: killed by signal 9"):
        await launching
    assert rig.ends == []


async def test_a_core_that_dies_as_soon_as_it_is_ready_fails_the_start(rig: Rig) -> None:
    """Its last words are read before the start goes on: the start must not succeed with a core that is gone."""
    launching = await rig.launch()
    rig.core.ready()
    rig.core.die()
    with pytest.raises(Internal, match="the core died"):
        await launching


async def test_a_core_that_dies_later_is_told_once(rig: Rig) -> None:
    await rig.ready()
    rig.core.fail("ENGINE_FAULT", "a step failed as a whole")
    assert [error.message for error in rig.ends] == ["a step failed as a whole"]


async def test_a_launcher_that_fails_fails_the_start(rig: Rig) -> None:
    rig.launcher.error = OSError("no more processes")
    with pytest.raises(OSError, match="no more processes"):
        await rig.client.launch(PLAN)
    await rig.client.close()


async def test_commands_reach_the_core_in_order_while_there_is_one(rig: Rig) -> None:
    rig.client.send(EndSequence(1))
    await rig.ready()
    for key in (2, 3):
        rig.client.send(EndSequence(key))
    core = rig.core
    await rig.client.close()
    rig.client.send(EndSequence(4))
    assert core.ended == [2, 3]


async def test_closing_waits_for_the_core_and_reports_no_end(rig: Rig) -> None:
    rig.launcher.lingers = True
    await rig.ready()
    closing = [asyncio.create_task(rig.client.close()) for _ in range(2)]
    await settle()
    assert rig.core.closing
    assert not any(task.done() for task in closing)
    rig.core.end_close()
    await asyncio.gather(*closing)
    assert rig.ends == []


async def test_a_cut_close_goes_on_and_the_next_one_waits(rig: Rig) -> None:
    rig.launcher.lingers = True
    await rig.ready()
    first = asyncio.create_task(rig.client.close())
    await settle()
    first.cancel()
    second = asyncio.create_task(rig.client.close())
    await settle()
    assert not second.done()
    rig.core.end_close()
    await second
    assert rig.core.closed


async def test_what_a_closing_core_still_says_changes_nothing(rig: Rig) -> None:
    rig.launcher.lingers = True
    launching = await rig.launch()
    launching.cancel()
    closing = asyncio.create_task(rig.client.close())
    await settle()
    rig.core.progress(9)
    rig.core.ready()
    rig.core.fail("OUT_OF_MEMORY", "too late")
    rig.core.end_close()
    await closing
    assert (rig.reports, rig.ends) == ([], [])
    assert launching.cancelled()


async def test_each_launch_is_counted_and_its_counters_begin_anew(rig: Rig) -> None:
    history = rig.outputs.history
    for number in (1, 2):
        await rig.ready()
        assert history.cores == number
        rig.core.step(stat=CoreStat(counters=Counters(generated_tokens=3)))
        await rig.client.close()
    assert history.counters.generated_tokens == 6
    assert all(core.closed for core in rig.launcher.cores)


async def test_a_step_of_a_core_that_is_closed_counts_no_more(rig: Rig) -> None:
    rig.launcher.lingers = True
    await rig.ready()
    closing = asyncio.create_task(rig.client.close())
    await settle()
    rig.core.step([(1, 5)], stat=CoreStat(counters=Counters(generated_tokens=3)))
    rig.core.end_close()
    await closing
    assert rig.outputs.history.counters.generated_tokens == 0


async def test_a_start_after_a_death_works(rig: Rig) -> None:
    await rig.ready()
    rig.core.die()
    await rig.client.close()
    await rig.ready()
    assert len(rig.ends) == 1
    assert rig.outputs.history.cores == 2


async def test_a_core_that_is_not_ready_is_killed_when_it_is_closed(rig: Rig) -> None:
    """While it loads and warms up, which may take minutes, it reads no command."""
    launching = await rig.launch()
    await rig.client.close()
    assert rig.core.killed
    assert rig.ends == []
    launching.cancel()


async def test_a_core_that_is_ready_is_asked_to_end(rig: Rig) -> None:
    await rig.ready()
    await rig.client.close()
    assert rig.core.closed
    assert not rig.core.killed
