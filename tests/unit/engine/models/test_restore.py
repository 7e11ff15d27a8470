"""An engine returns to its models and their states by itself after a restart."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.engine.models import kept_models
from headrace_engine.engine.models.state_store import FILE, SavedModel, StateStore
from headrace_engine.errors import BadModel, FailedPrecondition, InvalidArgument
from headrace_engine.model_types import ModelState
from support.clocks.waiting import LIMIT
from support.engine.rig import NAME, Rig
from support.logged import logged
from unit.engine.models.restarts import rest, restart, saved


async def test_models_return_to_their_wanted_states(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.run("runs")
    await rig.install("installed")
    await rig.run("stopped")
    await rig.engine.stop_model("stopped")
    await rig.install("released")
    await rig.engine.release_model("released")
    assert saved(tmp_path) == {"runs": "RUNNING", "installed": "INITIAL", "stopped": "STOPPED"}
    await restart(rig, tmp_path)
    assert await rest(rig) == {
        "installed": ModelState.INITIAL,
        "runs": ModelState.RUNNING,
        "stopped": ModelState.INITIAL,
    }
    assert len([core for core in rig.launcher.cores if not core.closed]) == 1


async def test_no_state_on_disk_brings_a_released_model_back(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the engine is killed, what it finds again is what was wanted at some time."""
    seen: list[dict[str, str]] = []
    save = StateStore.save

    def noting(store: StateStore, models: Iterable[SavedModel]) -> None:
        save(store, models)
        seen.append(saved(tmp_path))

    monkeypatch.setattr(StateStore, "save", noting)
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.run()
    await rig.engine.stop_model(NAME)
    await rig.engine.release_model(NAME)
    assert seen == [{NAME: "INITIAL"}, {NAME: "RUNNING"}, {NAME: "STOPPED"}, {}]


async def test_restoring_returns_at_once_and_shows_what_is_wanted(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.run()
    await restart(rig, tmp_path)
    view = rig.engine.get_model(NAME)
    assert (view.state, view.wanted_state) == (ModelState.INSTALLING, ModelState.RUNNING)
    assert saved(tmp_path) == {NAME: "RUNNING"}
    assert (await rig.engine.start_model(NAME)).state is ModelState.RUNNING


async def test_a_start_during_the_install_is_wanted_from_the_call_on(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.engine.install_model(rig.config(), no_wait=True)
    await rig.engine.start_model(NAME, no_wait=True)
    assert saved(tmp_path) == {NAME: "RUNNING"}
    await rig.engine.start_model(NAME)


async def test_the_end_of_the_engine_is_no_wish_to_stop(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.run()
    await rig.engine.drain(0)
    await rig.engine.close()
    assert saved(tmp_path) == {NAME: "RUNNING"}


async def test_a_model_that_failed_is_tried_again(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.run()
    await rig.launcher.fail_restart()
    assert saved(tmp_path) == {NAME: "RUNNING"}
    await restart(rig, tmp_path)
    assert await rest(rig) == {NAME: ModelState.RUNNING}


async def test_an_unrestorable_model_says_why_and_delays_no_other(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.run("fine")
    await rig.run("outside")
    entries = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    entries[1]["config"]["model_path"] = "/nowhere/at/all"
    entries[1]["by_operator"] = False
    (tmp_path / FILE).write_text(json.dumps(entries), encoding="utf-8")
    await restart(rig, tmp_path, model_roots=(rig.model_path,))
    assert await rest(rig) == {"fine": ModelState.RUNNING, "outside": ModelState.FAILED}
    failure = rig.engine.get_model("outside").failure
    assert isinstance(failure, InvalidArgument)
    assert "outside this engine's model roots" in failure.message


async def test_a_saved_config_that_this_build_refuses_says_so(rig: Rig, tmp_path: Path) -> None:
    await rig.new_engine(state_dir=tmp_path).start()
    await rig.install()
    entries = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    entries[0]["config"]["logn_attention"] = True
    (tmp_path / FILE).write_text(json.dumps(entries), encoding="utf-8")
    await restart(rig, tmp_path)
    assert await rest(rig) == {NAME: ModelState.FAILED}
    failure = rig.engine.get_model(NAME).failure
    assert failure is not None
    assert failure.reason == "NOT_SUPPORTED"


async def test_a_damaged_file_stops_the_engine_from_starting(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(FailedPrecondition, match="repair or remove it"):
        await rig.new_engine(state_dir=tmp_path).start()
    assert (tmp_path / FILE).read_text(encoding="utf-8") == "{"


async def test_a_state_that_cannot_be_saved_is_logged(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("no space left on device")

    await rig.new_engine(state_dir=tmp_path).start()
    monkeypatch.setattr("os.fsync", fail)
    with caplog.at_level(logging.ERROR):
        await rig.run()
    assert rig.state is ModelState.RUNNING
    assert {*logged(caplog, "headrace_engine")} == {"state_not_saved: no space left on device"}


async def test_f1_a_hanging_state_directory_delays_only_saving(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes meanwhile is written when it answers again, the newest alone."""
    engine, go, syncs = rig.new_engine(state_dir=tmp_path), threading.Event(), []

    def hang(descriptor: int) -> None:
        syncs.append(descriptor)
        assert go.wait(LIMIT)

    await engine.start()
    monkeypatch.setattr("os.fsync", hang)
    monkeypatch.setattr(kept_models, "SAVE_LIMIT", 0.001)
    with caplog.at_level(logging.ERROR):
        await rig.run()
        accepted = await rig.start()
    assert "state_not_saved: the state directory has not answered for 0.001 s" in caplog.messages
    assert not (tmp_path / FILE).exists()
    monkeypatch.setattr(kept_models, "SAVE_LIMIT", 60.0)
    go.set()
    await engine.release_request(accepted.handle, "")
    await engine.stop_model(NAME)
    assert json.loads((tmp_path / FILE).read_text())[0]["wanted"] == "STOPPED"
    assert len(syncs) <= 3


async def test_without_a_folder_nothing_is_kept(rig: Rig) -> None:
    await rig.run()
    await rig.engine.close()
    await rig.new_engine().start()
    assert rig.engine.list_models() == []


async def test_two_engines_do_not_share_a_folder(rig: Rig, tmp_path: Path) -> None:
    first = rig.new_engine(state_dir=tmp_path)
    await first.start()
    second = rig.new_engine(state_dir=tmp_path)
    with pytest.raises(FailedPrecondition, match="in use by another engine"):
        await second.start()
    await first.close()
    await second.start()


def batches(folder: Path) -> dict[str, Any]:
    """max_batch by name, as it is on disk."""
    entries = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return {entry["config"]["model_name"]: entry["config"]["max_batch"] for entry in entries}


async def test_f5_a_model_that_no_message_holds_is_failed(rig: Rig, tmp_path: Path) -> None:
    """Neither at its install nor after a restart, whatever was kept of it."""
    wrong = shutil.copytree(rig.model_path, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2**32}))
    await rig.new_engine(state_dir=tmp_path / "state").start()
    with pytest.raises(BadModel, match="max_position_embeddings = 4294967296 must be an integer from 1 to 2147483647"):
        await rig.install("m", model_path=str(wrong))
    await restart(rig, tmp_path / "state")
    assert await rest(rig) == {"m": ModelState.FAILED}
    view = rig.engine.get_model("m")
    assert view.failure is not None
    assert view.failure.reason == "BAD_MODEL"
    await rig.engine.release_model("m")
