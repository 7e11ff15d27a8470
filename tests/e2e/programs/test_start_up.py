"""How an engine comes up and goes down: its command line, its state directory, and signals before it is ready."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from headrace import Client
from headrace.types import ModelState
from support.clocks.waiting import LIMIT, wait_until
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import Server, core_of, engine_server

ONE_THREAD = ("--num-threads", "1", "--max-length", "64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def batch(server: Server) -> int:
    """max_batch of the model that runs."""
    with Client(server.address) as client:
        wait_until(lambda: client.get_model("mine")[0].state is ModelState.RUNNING, "the model does not start")
        effective = client.get_model("mine")[0].effective
        assert effective is not None
        return int(effective.config["max_batch"])


def test_the_command_line_replaces_what_was_kept(folder: Path, tmp_path: Path) -> None:
    """An engine whose command line changed comes up with it, under a restart policy too, and keeps it."""
    keep = ("--state-dir", str(tmp_path))
    model = ("--model", f"mine={folder}", *ONE_THREAD)
    with engine_server("e1", *keep, *model, "--max-batch", "4") as engine:
        assert batch(engine) == 4
        engine.process.kill()
        engine.process.wait()
    with engine_server("e1", *keep, *model, "--max-batch", "2") as engine:
        message = engine.wait_event("stored_model_replaced", model="mine")
        assert message["changes"] == ["max_batch: 4 -> 2"]
        assert batch(engine) == 2
    with engine_server("e1", *keep) as engine:
        assert batch(engine) == 2


def test_a_core_that_is_not_ready_goes_with_its_engine(folder: Path) -> None:
    with engine_server("e1", "--model", f"mine={folder}", *ONE_THREAD) as engine:
        engine.wait_event("model_state", state="STARTING")
        core = core_of(engine)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(LIMIT) == 0
        assert not core.is_running()
        engine.wait_event("stopping")
