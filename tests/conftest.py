"""What every test needs: caches and temporary files are those of this run alone; an interrupt is one."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from headrace_engine.environment import CACHE_VARIABLE
from hypothesis import HealthCheck, settings

# No test fails by how long it takes, on whatever machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Threads of torch wait for each other at every op, on a busy machine for longer than tiny models take in one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What make says to its own parts, such as to hold back their output, is not for a make that a test starts.
for _name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(_name, None)

# Shells start what runs in their background with SIGINT ignored, nohup with SIGHUP; what tests start would
# inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed weights of this run go into a folder of its own, also those of processes that tests start."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines keep models in memory among the temporary files: tests see those of this run alone."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", folder)
        environment.setattr(tempfile, "tempdir", folder)
        yield
