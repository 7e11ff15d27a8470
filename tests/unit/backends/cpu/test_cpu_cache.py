"""Packed weights on disk: used when they fit, made anew when they do not, and never a reason to fail."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil

import numpy as np
import pytest
from headrace_engine.backends.cpu.weights.packing import Packer
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.backends.weight_cache import cache_folder, cache_key
from headrace_engine.backends.weight_file import PAGE
from headrace_engine.config import ComputeDtype, WeightQuant
from headrace_engine.environment import CACHE_VARIABLE
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.native import PackedMatrix
from support.backends.cpu_sequences import cpu_model
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
def gguf(tmp_path, tiny):
    return make_tiny_gguf(tmp_path / "tiny.gguf", tiny, "Q4_1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


@pytest.fixture(autouse=True)
def packed(monkeypatch):
    """A note for every time that weights were packed from files."""
    notes, pack = [], Packer.pack

    def noted(self, arena, progress):
        notes.append(arena)
        pack(self, arena, progress)

    monkeypatch.setattr(Packer, "pack", noted)
    return notes


def contents(path, **changes):
    """Every tensor of a model as it is in memory."""
    with cpu_model(path, **changes) as model:
        return {
            name: np.stack([tensor.row(row) for row in range(tensor.matrix.outputs)])
            if isinstance(tensor, PackedMatrix)
            else tensor.copy()
            for name, tensor in model.weights.tensors.items()
        }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_model_that_was_packed_is_taken_from_the_cache(gguf, folder, packed):
    first = contents(gguf)
    assert [path.suffix for path in folder.iterdir()] == [".weights"]
    assert_same(contents(gguf), first)
    assert len(packed) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_quant": WeightQuant.INT8},
        {"weight_quant": WeightQuant.INT4},
        {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32},
        {"dtype": ComputeDtype.FLOAT16},
    ],
    ids=str,
)
def test_every_storage_has_a_cache_of_its_own(changes, gguf, folder, packed):
    contents(gguf)
    quantised = contents(gguf, **changes)
    assert len(list(folder.iterdir())) == len(packed) == 2
    assert_same(contents(gguf, **changes), quantised)
    assert len(packed) == 2


def test_unquantized_weights_are_not_cached(tiny, gguf, folder):
    contents(tiny)
    contents(gguf, dtype=ComputeDtype.FLOAT32)
    assert not folder.exists()


def test_changed_files_are_packed_anew_in_the_same_path(gguf, tiny, folder, packed):
    contents(gguf)
    (entry,) = folder.iterdir()
    before = entry.read_bytes()
    make_tiny_gguf(gguf, make_tiny_llama(gguf.parent / "other", seed=5), "Q4_1")
    changed = contents(gguf)
    assert len(packed) == 2
    assert [path.name for path in folder.iterdir()] == [entry.name]
    assert entry.read_bytes() != before
    assert_same(contents(gguf), changed)


def test_a_file_that_was_touched_is_packed_anew(gguf, packed):
    contents(gguf)
    os.utime(gguf, (1, 1))
    contents(gguf)
    assert len(packed) == 2


DAMAGE = {
    "empty": lambda data: b"",
    "no header": lambda data: data[:10],
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "another magic": lambda data: b"X" + data[1:],
    "a length that is none": lambda data: data[:8] + b"\xff" * 8 + data[16:],
    "a header that is no JSON": lambda data: data[:16] + b"x" + data[17:],
    "a header of another kind": lambda data: data.replace(b'"outputs"', b'"outputz"', 1),
    "another format": lambda data: data.replace(b'"format": 5', b'"format": 9', 1),
    "a flipped bit in the first matrix": lambda data: flipped(data, 1),
    "a flipped bit at the end": lambda data: flipped(data, len(data) - PAGE),
}


def flipped(data, behind):
    """A bit of the matrices is another one."""
    start = next(at for at in range(PAGE, len(data), PAGE) if any(data[at : at + PAGE]))
    at = max(start, behind)
    at = next(place for place in range(at, len(data)) if data[place])
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_packed_anew_and_mended(damage, gguf, folder, packed, caplog):
    first = contents(gguf)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGE[damage](whole))
    with caplog.at_level(logging.INFO):
        assert_same(contents(gguf), first)
    assert "weight_cache_not_used" in caplog.text
    assert len(packed) == 2
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("what", ["a file in the way", "read-only", "full"])
def test_an_unwritable_folder_is_logged_and_no_failure(what, gguf, folder, packed, monkeypatch, caplog):
    if what == "a file in the way":
        folder.parent.write_text("not a folder")
    elif what == "read-only":
        if os.geteuid() == 0:
            monkeypatch.setattr(os, "open", refusing_open)
        folder.mkdir(parents=True)
        folder.chmod(0o500)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    contents(gguf)
    assert "weights_not_cached" in caplog.text
    assert contents(gguf)
    assert len(packed) == 2


def refusing_open(path, flags, mode=0o777, *, real=os.open):
    if flags & os.O_CREAT:
        raise PermissionError(13, "Permission denied", str(path))
    return real(path, flags, mode)


def test_f1_a_fifo_in_the_place_of_the_file_is_not_waited_for(gguf, folder, packed, caplog):
    first = contents(gguf)
    (entry,) = folder.iterdir()
    entry.unlink()
    os.mkfifo(entry)
    with caplog.at_level(logging.INFO):
        assert_same(contents(gguf), first)
    assert "not a regular file but a FIFO" in caplog.text


def test_what_a_killed_process_left_half_written_is_overwritten(gguf, folder, packed):
    first = contents(gguf)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.unlink()
    entry.with_suffix(".part").write_bytes(b"half" * len(whole))
    assert_same(contents(gguf), first)
    assert [path.name for path in folder.iterdir()] == [entry.name]
    assert entry.read_bytes() == whole


def test_two_processes_do_not_write_the_same_file_at_once(gguf, folder, packed):
    contents(gguf)
    (entry,) = folder.iterdir()
    entry.unlink()
    with entry.with_suffix(".part").open("wb") as other:
        other.write(b"theirs")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        contents(gguf)
        assert entry.with_suffix(".part").read_bytes() == b"theirs"
        assert not entry.exists()


def test_a_model_that_cannot_be_read_leaves_nothing(gguf, folder, monkeypatch):
    def failing(self, arena, progress):
        raise BadModel("it broke")

    monkeypatch.setattr(Packer, "pack", failing)
    with pytest.raises(BadModel, match="it broke"):
        contents(gguf)
    assert not folder.exists()


def test_a_file_that_is_gone_is_named(gguf):
    files = open_model(str(gguf))
    gguf.unlink()
    with pytest.raises(BadModel, match=r"tiny\.gguf: cannot be read: No such file"):
        cache_key(files, Storage(ComputeDtype.FLOAT32), "layout")


def test_the_folder_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "/a")
    assert cache_folder().as_posix() == "/a/weights"
