"""Calls that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.errors import FailedPrecondition, NotFound


async def not_found(call: Any) -> NotFound:
    with pytest.raises(NotFound) as caught:
        await call
    return caught.value


async def refused(call: Any) -> FailedPrecondition:
    with pytest.raises(FailedPrecondition) as caught:
        await call
    return caught.value
