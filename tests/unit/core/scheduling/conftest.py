"""A rig whose runner computes while the host goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from support.core.delayed_runner import DelayedRig


class MakeDelayed(Protocol):
    def __call__(self, **changes: Any) -> DelayedRig: ...


@pytest.fixture
def make_delayed() -> Iterator[MakeDelayed]:
    rigs: list[DelayedRig] = []

    def make(**changes: Any) -> DelayedRig:
        rigs.append(DelayedRig(**changes))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.assert_idle()
