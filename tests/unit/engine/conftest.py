"""An engine with a tiny model and a core that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.clocks.waiting import LIMIT
from support.engine.held import Held
from support.engine.rig import Rig
from support.models.tiny_models import make_tiny_llama


@pytest.fixture(autouse=True, scope="module")
def no_card() -> Iterator[None]:
    """What a config becomes is that of a host without a CUDA device, whatever this one has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace_engine.engine.config.backend_fields.has_driver", lambda: False)
        yield


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a Llama of 384 ids and 512 positions; not to be changed."""
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
async def rig(model_path: Path) -> AsyncIterator[Rig]:
    """An engine and its surroundings. In the end every core is gone, and nothing goes on in the background."""
    rig = Rig(model_path)
    yield rig
    for core in rig.launcher.cores:
        core.end_close()
    await rig.engine.close()
    assert all(core.closed for core in rig.launcher.cores)
    assert rig.engine.live_requests == 0
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=LIMIT)
    assert not [task for task in left if not task.done()]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """What installs read is held until the test lets it go."""
    held = Held(monkeypatch)
    yield held
    held.go()
