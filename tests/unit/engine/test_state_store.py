"""Configs and wanted states over restarts."""

from __future__ import annotations

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
from headrace_engine.engine.state_store import FILE, SavedModel, StateStore
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


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    StateStore(tmp_path).save([PLAIN, FULL])
    assert StateStore(tmp_path).load() == [PLAIN, FULL]


def test_every_field_that_can_be_set_survives(tmp_path: Path) -> None:
    """No field of the config is left out by the encoding: the text names each one."""
    StateStore(tmp_path).save([PLAIN])
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    assert all(f'"{field.name}"' in text for field in fields(RuntimeConfig))


def test_a_save_replaces_the_one_before(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save([PLAIN, FULL])
    store.save([FULL])
    store.save([])
    assert store.load() == []
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_the_folder_is_made(tmp_path: Path) -> None:
    StateStore(tmp_path / "a" / "b").save([PLAIN])
    assert StateStore(tmp_path / "a" / "b").load() == [PLAIN]


def test_nothing_saved_is_nothing_loaded(tmp_path: Path) -> None:
    assert StateStore(tmp_path).load() == []


def test_without_a_folder_nothing_is_kept() -> None:
    store = StateStore(None)
    store.save([PLAIN])
    assert store.load() == []


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
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    with pytest.raises(FailedPrecondition, match=FILE) as caught:
        StateStore(tmp_path).load()
    assert str(tmp_path / FILE) in caught.value.message
    assert "mend or remove it" in caught.value.message


def test_a_save_that_is_cut_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path)
    store.save([PLAIN])

    def fail(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        store.save([FULL])
    assert store.load() == [PLAIN]
