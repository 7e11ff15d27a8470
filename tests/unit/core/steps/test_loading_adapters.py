"""A core loads adapters between steps; their files are read meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.ipc.commands import LoadAdapter
from headrace_engine.ipc.messages import AdapterLoaded, CoreMessage
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from support.clocks.waiting import LIMIT, wait_until
from support.core.delayed_runner import DelayedRunner
from support.core.rig import Rig

PLAN = AdapterPlan(1, "/adapter", "00", 4)


class LoadingRunner(DelayedRunner):
    """Records how many steps were under way when an adapter was loaded.

    Attributes:
        may_read: set it to let the files be read.
        error: why they cannot be.
    """

    def __init__(self, plan: CorePlan) -> None:
        super().__init__(plan)
        self.under_way: list[int] = []
        self.may_read = threading.Event()
        self.error: Exception | None = None

    def read_adapter(self, plan: AdapterPlan) -> Callable[[], None]:
        assert plan == PLAN
        assert self.may_read.wait(LIMIT)
        if self.error is not None:
            raise self.error
        return lambda: self.under_way.append(self._under_way())


class LoadingRig(Rig):
    """A core whose runner takes adapters."""

    make_runner = LoadingRunner

    def __init__(self, **changes: Any) -> None:
        self.loaded: list[AdapterLoaded] = []
        super().__init__(**changes)

    def _note(self, message: CoreMessage) -> None:
        if isinstance(message, AdapterLoaded):
            self.loaded.append(message)
        else:
            super()._note(message)

    def is_loaded(self) -> bool:
        """Step once; True if an adapter was loaded."""
        self.step()
        return bool(self.loaded)


def test_steps_go_on_while_files_are_read() -> None:
    rig = LoadingRig()
    key = rig.add((5, 6, 7), max_new=60)
    for _ in range(3):
        rig.step()
    rig.link.commands.append(LoadAdapter(PLAN))
    before = len(rig.tokens[key])
    for _ in range(10):
        rig.step()
    assert len(rig.tokens[key]) >= before + 9
    assert not rig.loaded
    rig.runner.may_read.set()
    wait_until(rig.is_loaded, "the adapter is not loaded")
    assert rig.loaded == [AdapterLoaded(1)]
    assert rig.runner.under_way == [0]
    rig.run()
    rig.core.check_integrity()


@pytest.mark.parametrize("error", [BadModel("has changed"), OSError("has changed")])
def test_an_idle_core_tells_why_it_could_not_load(error: Exception) -> None:
    rig = LoadingRig()
    rig.runner.error = error
    rig.runner.may_read.set()
    rig.link.commands.append(LoadAdapter(PLAN))
    wait_until(rig.is_loaded, "nothing is told")
    assert "has changed" in rig.loaded[0].error
    assert rig.runner.under_way == []
    assert not rig.core.busy
