"""Settings of an engine that are refused."""

from __future__ import annotations

import math

import pytest
from headrace_engine.engine.config.options import EngineOptions


@pytest.mark.parametrize("name", ["e1", "engine", "e-1.zone_2", "7", "a" * 64])
def test_names_that_handles_can_carry(name: str) -> None:
    assert EngineOptions(name=name).name == name


@pytest.mark.parametrize("name", ["", "a/b", "/", "a b", "a\n", "é", "-a", ".a", "a" * 65, "e1=x"])
def test_a_name_that_handles_cannot_carry_is_refused(name: str) -> None:
    """A gateway takes handles apart at "/" and keeps the same rule for the names of its engines."""
    with pytest.raises(ValueError, match="is not a valid engine name; allowed: 1 to 64 of letters"):
        EngineOptions(name=name)


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_a_stream_interval_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"stream_interval = .* must be a non-negative number of seconds"):
        EngineOptions(stream_interval=seconds)
    with pytest.raises(ValueError, match=r"step_target = .* must be a non-negative number of seconds"):
        EngineOptions(step_target=seconds)
