"""Configs and wanted states over restarts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from headrace_engine.config import (
    Adapter,
    ComputeDtype,
    ComputeUnit,
    Lease,
    ModelFormat,
    RopeScaling,
    RopeScalingType,
    RuntimeConfig,
)
from headrace_engine.engine.models.state_store import FILE, LOCK, SavedModel, StateStore
from headrace_engine.errors import FailedPrecondition
from headrace_engine.model_types import ModelState

PLAIN = SavedModel(RuntimeConfig(model_name="smol", model_path="/models/smol"), ModelState.RUNNING)
FULL = SavedModel(
    RuntimeConfig(
        model_name="große/modell:1",
        model_path="/models/ü",
        format=ModelFormat.GGUF,
        dtype=ComputeDtype.BFLOAT16,
        compute_unit=ComputeUnit.CPU,
        device_list=(0, 2),
        num_threads=0,
        max_batch=4,
        enable_prefix_cache=False,
        memory_ratio=0.1,
        rope_scaling=RopeScaling(RopeScalingType.LLAMA3, factor=8.0, low_freq_factor=1.0),
        chat_template="{{ messages[0]['content'] }}\n\t\"'",
        drain_limit=0.0,
        default_lease=Lease(running=60.0, ended=0.0),
        default_seed=2**64 - 1,
        adapters=(Adapter("a", "/adapters/a"),),
    ),
    ModelState.STOPPED,
)


def opened(folder: Path | None) -> tuple[StateStore, list[SavedModel]]:
    store = StateStore(folder)
    return store, store.open()


def save(folder: Path, *models: SavedModel) -> None:
    """What an engine that came and went left behind."""
    store, _ = opened(folder)
    store.save(models)
    store.close()


def kept(folder: Path) -> list[SavedModel]:
    store, models = opened(folder)
    store.close()
    return models


def test_what_was_saved_is_found_again(tmp_path: Path) -> None:
    save(tmp_path, PLAIN, FULL)
    assert kept(tmp_path) == [PLAIN, FULL]


def test_every_field_that_can_be_set_survives(tmp_path: Path) -> None:
    """No field of the config is left out by the encoding: the text names each one."""
    save(tmp_path, PLAIN)
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    assert all(f'"{field.name}"' in text for field in fields(RuntimeConfig))


def test_a_save_replaces_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, PLAIN, FULL)
    save(tmp_path, FULL)
    save(tmp_path)
    assert kept(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {FILE, LOCK}


def test_the_folder_is_made(tmp_path: Path) -> None:
    save(tmp_path / "a" / "b", PLAIN)
    assert kept(tmp_path / "a" / "b") == [PLAIN]


def test_nothing_saved_is_nothing_found(tmp_path: Path) -> None:
    assert kept(tmp_path) == []


def test_without_a_folder_nothing_is_kept() -> None:
    store, models = opened(None)
    store.save([PLAIN])
    store.close()
    assert models == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b'[{"config": {}}]',
        b'[{"config": {"max_batch": "many"}, "wanted": "RUNNING"}]',
        b'[{"config": {}, "wanted": "FLYING"}]',
        b'[{"config": {"model_name": "\xff"}, "wanted": "RUNNING"}]',
    ],
)
def test_a_damaged_file_is_an_error_of_one_line_that_names_it(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    text = refusal(tmp_path)
    assert text.startswith(f"{tmp_path / FILE} cannot be read (")
    assert "repair or remove it" in text
    (tmp_path / FILE).unlink()
    assert kept(tmp_path) == [], "a refused folder is not held"


def refusal(folder: Path) -> str:
    with pytest.raises(FailedPrecondition) as caught:
        StateStore(folder).open()
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    text = refusal(tmp_path / "state")
    assert text.startswith(f"state directory {tmp_path / 'state'} cannot be used (File exists): name a directory that")


def test_a_folder_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert "cannot be used (Not a directory)" in refusal(tmp_path / "state" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be used (Permission denied)" in refusal(tmp_path)


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    assert "cannot be used (Is a directory)" in refusal(tmp_path)


def test_a_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert f"{tmp_path / FILE} cannot be read (not a regular file but a directory)" in refusal(tmp_path)


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    first.save([PLAIN])
    text = refusal(tmp_path)
    assert text == f"state directory {tmp_path} is in use by another engine: give each engine a directory of its own"
    first.close()
    assert kept(tmp_path) == [PLAIN]


def test_a_child_process_does_not_hold_the_folder(tmp_path: Path) -> None:
    """A core that outlives its service for a moment must not keep the next service out."""
    store, _ = opened(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        store.close()
        assert kept(tmp_path) == []
        assert child.stdin is not None
        child.stdin.close()


def test_a_folder_that_is_not_held_is_left_as_it_is(tmp_path: Path) -> None:
    save(tmp_path, PLAIN)
    StateStore(tmp_path).save([FULL])
    store, _ = opened(tmp_path)
    store.close()
    store.save([FULL])
    assert kept(tmp_path) == [PLAIN]


def test_a_save_that_is_cut_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(tmp_path)
    store.save([PLAIN])

    def fail(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        store.save([FULL])
    store.close()
    assert kept(tmp_path) == [PLAIN]


@pytest.mark.parametrize("name", [FILE, LOCK])
def test_f1_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    if name == FILE:
        assert "not a regular file but a FIFO" in refusal(tmp_path)
    else:
        StateStore(tmp_path).open()


def test_f1_a_fifo_in_the_place_of_the_draft_is_an_error(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.open()
    os.mkfifo(tmp_path / "models.new")
    with pytest.raises(OSError, match="not a regular file"):
        store.save([])
