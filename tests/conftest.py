"""What every test needs: nothing is kept in, or taken from, the caches of the user; an interrupt is one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from headrace_engine.environment import CACHE_VARIABLE

# Shells start what runs in their background with SIGINT ignored, nohup with SIGHUP; what tests start would
# inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed weights of this run go into a folder of its own, also those of processes that tests start."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop(CACHE_VARIABLE)
    if before is not None:
        os.environ[CACHE_VARIABLE] = before
