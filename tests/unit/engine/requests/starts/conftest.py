"""Prompts whose tokens are computed when the test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.engine.tokenising import Tokenising


@pytest.fixture
def tokenising(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokenising]:
    tokenising = Tokenising(monkeypatch)
    yield tokenising
    tokenising.go()
