"""Damaged, incomplete and dangerous files are refused by name before a weight is read."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models.damage import (
    bounded_memory,
    cut_end,
    edit_header,
    edit_json,
    overwrite,
    read_header,
    refusal,
    rename_tensor,
)
from unit.models.conftest import Copy

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TestShards:
    def test_bc123_missing_shard_is_refused(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        shard = sorted(path.glob("*.safetensors"))[1]
        shard.unlink()
        assert shard.name in refusal(path)

    def test_bc123_missing_shard_is_refused_without_an_index(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        (path / INDEX).unlink()
        shard = sorted(path.glob("*.safetensors"))[-1]
        shard.unlink()
        assert shard.name in refusal(path)

    def test_bc123_index_naming_an_unknown_file_is_refused(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        edit_json(path / INDEX, weight_map={"model.norm.weight": "model-00009-of-00009.safetensors"})
        assert "model-00009-of-00009.safetensors" in refusal(path)

    def test_bc123_index_naming_an_unknown_tensor_is_refused(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        shard = sorted(path.glob("*.safetensors"))[0].name
        edit_json(path / INDEX, weight_map={"model.ghost.weight": shard})
        message = refusal(path)
        assert "model.ghost.weight" in message
        assert shard in message

    @pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "weights.bin", 7])
    def test_index_may_only_name_safetensors_of_the_directory(self, copy: Copy, sharded: Path, name: object) -> None:
        path = copy(sharded)
        edit_json(path / INDEX, weight_map={"model.norm.weight": name})
        assert repr(name) in refusal(path)

    def test_complete_shards_open_without_an_index(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        (path / INDEX).unlink()
        assert open_model(str(path)).tensors.keys() == open_model(str(sharded)).tensors.keys()

    def test_a_tensor_in_two_shards_is_refused(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        first, second, *_ = sorted(path.glob("*.safetensors"))
        name = next(name for name in read_header(first) if name != "__metadata__")
        own = next(name for name in read_header(second) if name != "__metadata__")
        rename_tensor(second, own, name)
        (path / INDEX).unlink()
        message = refusal(path)
        assert name in message
        assert first.name in message


class TestTruncation:
    def test_bc124_cut_end_is_refused_with_both_sizes(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        size = cut_end(path / WEIGHTS, 4096)
        message = refusal(path)
        assert WEIGHTS in message
        assert str(size) in message
        assert str(size - 4096) in message

    def test_bc124_cut_shard_is_refused_by_name(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        shard = sorted(path.glob("*.safetensors"))[-1]
        cut_end(shard, 4096)
        assert f"{shard.name}: truncated" in refusal(path)

    def test_bc124_cut_inside_the_header_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:100])
        message = refusal(path)
        assert f"{WEIGHTS}: truncated: 100 bytes, expected" in message

    @pytest.mark.parametrize("size", [0, 7])
    def test_bc124_file_without_a_header_is_refused(self, copy: Copy, llama: Path, size: int) -> None:
        path = copy(llama)
        (path / WEIGHTS).write_bytes(b"\0" * size)
        assert f"{WEIGHTS}: truncated: {size} bytes, expected at least 8" in refusal(path)

    def test_bytes_after_the_last_tensor_are_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        with (path / WEIGHTS).open("ab") as file:
            file.write(b"\0" * 16)
        assert f"{WEIGHTS}: too long" in refusal(path)


class TestHeaders:
    def test_bc126_an_absurd_header_length_allocates_nothing(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        content = (path / WEIGHTS).read_bytes()
        (path / WEIGHTS).write_bytes(struct.pack("<Q", 2**60) + content[8:])
        with bounded_memory(10 * 2**20):
            message = refusal(path)
        assert WEIGHTS in message
        assert str(2**60) in message

    def test_bc126_header_that_is_no_json_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        content = bytearray((path / WEIGHTS).read_bytes())
        content[8:12] = b"!!!!"
        (path / WEIGHTS).write_bytes(content)
        assert f"{WEIGHTS}: not valid JSON" in refusal(path)

    def test_bc126_overlapping_tensors_are_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)

        def overlap(header: dict[str, dict[str, list[int]]]) -> None:
            entry = header["model.norm.weight"]
            entry["data_offsets"] = [place - 4 for place in entry["data_offsets"]]

        edit_header(path / WEIGHTS, overlap)
        message = refusal(path)
        assert WEIGHTS in message
        assert "overlaps" in message
        assert "model.norm.weight" in message

    def test_bc126_unknown_dtype_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_header(path / WEIGHTS, lambda header: header["model.norm.weight"].update(dtype="F12"))
        message = refusal(path)
        assert WEIGHTS in message
        assert "model.norm.weight" in message
        assert "'F12'" in message

    @pytest.mark.parametrize(
        "entry",
        [
            {"dtype": "F32", "shape": [64], "data_offsets": [0, 128]},
            {"dtype": "F32", "shape": [-64], "data_offsets": [0, 256]},
            {"dtype": "F32", "shape": "64", "data_offsets": [0, 256]},
            {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 256]},
            {"dtype": "F32", "shape": [64], "data_offsets": [256, 0]},
            {"dtype": "F32", "shape": [64], "data_offsets": None},
            {"dtype": ["F32"], "shape": [64], "data_offsets": [0, 256]},
            {"dtype": "F32", "shape": [64]},
            [],
        ],
    )
    def test_bc126_damaged_entry_names_file_and_tensor(self, copy: Copy, llama: Path, entry: object) -> None:
        path = copy(llama)
        edit_header(path / WEIGHTS, lambda header: header.update({"model.norm.weight": entry}))
        message = refusal(path)
        assert WEIGHTS in message
        assert "model.norm.weight" in message

    def test_integer_weights_are_refused_by_tensor_and_type(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_header(path / WEIGHTS, lambda header: header["model.norm.weight"].update(dtype="I32"))
        message = refusal(path)
        assert "model.norm.weight is I32" in message

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(place=st.integers(0, 2400), value=st.integers(0, 255))
    def test_bc126_any_changed_byte_opens_or_is_refused(
        self, tmp_path: Path, llama: Path, place: int, value: int
    ) -> None:
        """No error of the parser itself comes out, whatever a header says."""
        path = shutil.copytree(llama, tmp_path / "changed", dirs_exist_ok=True)
        overwrite(path / WEIGHTS, place, bytes([value]))
        try:
            opened: object = open_model(str(path))
        except BadModel as error:
            opened = error
        assert isinstance(opened, ModelFiles) or WEIGHTS in str(opened)


class TestPickles:
    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
    def test_bc127_directory_of_pickles_is_refused_and_not_run(self, copy: Copy, llama: Path, name: str) -> None:
        path = copy(llama)
        (path / WEIGHTS).unlink()
        self._write_bomb(path / name)
        message = refusal(path)
        assert name in message
        assert "safetensors" in message
        assert not (path / "marker").exists()

    def test_bc127_pickle_given_as_the_file_is_refused_and_not_run(self, tmp_path: Path) -> None:
        self._write_bomb(tmp_path / "pytorch_model.bin")
        assert "pickle" in refusal(tmp_path / "pytorch_model.bin")
        assert "pickle" in refusal(tmp_path)
        assert not (tmp_path / "marker").exists()

    def test_bc127_pickle_under_the_name_of_safetensors_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        self._write_bomb(path / WEIGHTS)
        assert WEIGHTS in refusal(path)
        assert not (path / "marker").exists()

    def test_bc127_code_of_an_unknown_architecture_is_never_run(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(
            path / "config.json",
            architectures=["OwnForCausalLM"],
            auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
        )
        (path / "own.py").write_text(f"open({str(path / 'marker')!r}, 'w').close()\n")
        message = refusal(path)
        assert "OwnForCausalLM" in message
        assert "auto_map" in message
        assert not (path / "marker").exists()

    def test_bc127_code_beside_a_known_model_is_ignored_with_warning(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "config.json", auto_map={"AutoModelForCausalLM": "own.OwnForCausalLM"})
        (path / "own.py").write_text(f"open({str(path / 'marker')!r}, 'w').close()\n")
        assert any("auto_map" in warning for warning in open_model(str(path)).warnings)
        assert not (path / "marker").exists()

    @staticmethod
    def _write_bomb(path: Path) -> None:
        """A pickle that leaves a marker when it is loaded."""
        path.write_bytes(f"cbuiltins\nopen\n(V{path.parent / 'marker'}\nVw\ntR.".encode())
