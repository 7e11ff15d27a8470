"""A model, a memory limit and a host that tests of the backends share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.backends.isa_levels import NAMES, at_levels, level  # noqa: F401  # the fixture
from support.models.tiny_models import make_tiny_llama

COMPUTING = ("test_cpu_decoder.py", "test_cpu_quantize.py", "test_cpu_ranks.py", "test_cpu_runner.py")
"""What the instruction set has a part in: these run at each level of the processor."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Has the tests that compute run at each level."""
    at_levels(metafunc, NAMES, COMPUTING)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the bytes that backends on the CPU see as the memory limit; a GiB before that."""

    def set_limit(size: int) -> None:
        for module in ("cpu.loading", "cpu.runner", "torch.loading", "torch.runner"):
            monkeypatch.setattr(f"headrace_engine.backends.{module}.memory_limit", lambda: size)

    monkeypatch.delenv("BFC_MEM_RATIO", raising=False)
    set_limit(2**30)
    return set_limit


class Host:
    """A file system that tells what a host has: 8 logical processors, two to a core, n and n + 4.

    Args:
        root: where it lies; calling the host writes a file below it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for cpu in range(8):
            self(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")

    def __call__(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Tests write more files over it."""
    return Host(tmp_path)
