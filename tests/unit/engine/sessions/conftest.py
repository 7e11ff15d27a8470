"""A session on logs that the test fills."""

from __future__ import annotations

import pytest
from support.engine.session_rig import SessionRig


@pytest.fixture
async def rig() -> SessionRig:
    return SessionRig()
