"""An opened runner of the cpu backend."""

from __future__ import annotations

import pytest
from headrace_engine.backends.cpu import make_runner
from support.backends.runners import plan_for, silent


@pytest.fixture
def opened():
    """Makes runners that are closed in the end."""
    runners = []

    def open_one(path, make=make_runner, **changes):
        runner = make(plan_for(path, **changes))
        runners.append(runner)
        runner.load(silent)
        return runner

    yield open_one
    for runner in runners:
        runner.close()
