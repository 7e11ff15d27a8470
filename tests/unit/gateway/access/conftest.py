"""A gateway with API keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.gateway.access.keyed import Keyed
from unit.gateway.conftest import World


@pytest.fixture
def keyed(world: World, tmp_path: Path) -> Keyed:
    return Keyed(world, tmp_path / "keys.toml")
