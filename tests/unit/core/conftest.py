"""Every bench of a test must be idle, with its books right, when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from unit.core.bench import Bench


class MakeBench(Protocol):
    """Makes a bench; keywords change the plan."""

    def __call__(self, **changes: Any) -> Bench: ...


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    benches: list[Bench] = []

    def make(**changes: Any) -> Bench:
        benches.append(Bench(**changes))
        return benches[-1]

    yield make
    for bench in benches:
        bench.assert_idle()
