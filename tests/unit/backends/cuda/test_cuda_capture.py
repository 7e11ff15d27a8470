"""How steps are captured on a card: what torch is asked for, with torch's own signature."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from headrace_engine.backends.cuda.device.device import CudaDevice


def test_other_threads_do_not_void_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores in one process are threads: another model's allocation is allowed meanwhile."""
    signature, asked = inspect.signature(torch.cuda.graph.__init__), []

    @contextmanager
    def graph(*given: Any, **named: Any) -> Iterator[None]:
        asked.append(signature.bind(None, *given, **named).arguments)
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    device = object.__new__(CudaDevice)
    device.torch, device._pool = torch.device("cpu"), (0, 1)
    vars(device)["_stream"] = "its own"
    assert device.capture(lambda: 5) == ("graph", 5)
    (arguments,) = asked
    assert arguments["capture_error_mode"] == "thread_local"
    assert arguments["stream"] == "its own"
    assert arguments["pool"] == (0, 1)
