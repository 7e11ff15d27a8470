"""When a test ends, each of its rigs must be idle and consistent, and each core of a front half closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import pytest
from support.core.front import Front
from support.core.rig import Rig


class MakeRig(Protocol):
    """Makes a rig; keywords change the plan."""

    def __call__(self, **changes: Any) -> Rig: ...


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    rigs: list[Rig] = []

    def make(**changes: Any) -> Rig:
        rigs.append(Rig(**changes))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.assert_idle()


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    yield front
    for link in front.links:
        await link.close()
