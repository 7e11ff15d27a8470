"""Two engines with a model that is installed."""

from __future__ import annotations

import pytest
from support.scripted.engine_answers import INITIAL


@pytest.fixture
async def first(world):
    return await world.engine(smol=INITIAL)


@pytest.fixture
async def second(world):
    return await world.engine(smol=INITIAL)
