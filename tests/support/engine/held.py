"""Installs that wait for the test."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from headrace_engine.engine.models.prepare import prepare

from support.clocks.waiting import LIMIT

PREPARE = "headrace_engine.engine.models.model.prepare"


class Held:
    """Holds installs until the test releases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go = threading.Event()
        self.count = 0
        monkeypatch.setattr(PREPARE, self)

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        assert self._go.wait(LIMIT)
        return prepare(*args)

    def go(self) -> None:
        self._go.set()
