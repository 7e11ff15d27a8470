"""Damaged GGUF files, and those with types that cannot be read, are refused with the file's name."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import gguf
import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.loaders.gguf_header import read_header
from headrace_engine.models.loaders.gguf_types import STORAGE_TYPES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models.damage import bounded_memory, cut_end, overwrite, refusal
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama
from unit.models.conftest import Copy


@pytest.fixture(scope="session")
def wide_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file whose rows divide into the blocks of every type."""
    directory = tmp_path_factory.mktemp("wide")
    source = make_tiny_llama(directory / "source", hidden_size=256, intermediate_size=256)
    return make_tiny_gguf(directory / "wide.gguf", source)


class TestDamage:
    def test_bc124_cut_end_is_refused_with_both_sizes(self, copy: Copy, llama_gguf: Path) -> None:
        path = copy(llama_gguf)
        size = cut_end(path, 4096)
        message = refusal(path)
        assert "llama.gguf: truncated" in message
        assert str(size - 4096) in message

    @pytest.mark.parametrize("size", [4, 10, 23, 200, 5000])
    def test_bc124_cut_inside_the_header_is_refused(self, copy: Copy, llama_gguf: Path, size: int) -> None:
        path = copy(llama_gguf)
        path.write_bytes(path.read_bytes()[:size])
        message = refusal(path)
        assert "llama.gguf" in message
        assert "truncated" in message
        assert str(size) in message

    def test_bc124_empty_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").touch()
        assert "model.gguf: not a GGUF file: truncated: 0 bytes" in refusal(tmp_path)

    def test_another_kind_of_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_bytes(b"PK\3\4" + b"\0" * 100)
        assert "model.gguf: not a GGUF file" in refusal(tmp_path)

    @pytest.mark.parametrize(("version", "word"), [(1, "version 1"), (99, "version 99"), (3 << 24, "big-endian")])
    def test_unknown_versions_are_refused(self, copy: Copy, llama_gguf: Path, version: int, word: str) -> None:
        path = copy(llama_gguf)
        overwrite(path, 4, struct.pack("<I", version))
        assert word in refusal(path)

    @pytest.mark.parametrize("place", [8, 16, 24])
    def test_bc126_absurd_counts_are_refused_without_allocating(self, copy: Copy, llama_gguf: Path, place: int) -> None:
        path = copy(llama_gguf)
        overwrite(path, place, struct.pack("<Q", 2**60))
        with bounded_memory(10 * 2**20):
            message = refusal(path)
        assert "llama.gguf" in message
        assert str(2**60) in message

    def test_bc126_overlapping_tensors_are_refused(self, copy: Copy, llama_gguf: Path) -> None:
        path = copy(llama_gguf)
        second = sorted(read_header(path).tensors.values(), key=lambda tensor: tensor.offset)[1]
        place = description_end(path, second.name) - 8
        overwrite(path, place, struct.pack("<Q", 0))
        message = refusal(path)
        assert "overlaps" in message
        assert second.name in message

    def test_bc126_unaligned_offset_is_refused(self, copy: Copy, llama_gguf: Path) -> None:
        path = copy(llama_gguf)
        overwrite(path, description_end(path, "output_norm.weight") - 8, struct.pack("<Q", 33))
        assert "output_norm.weight begins at byte 33" in refusal(path)

    def test_bc126_unknown_type_is_refused_by_tensor(self, copy: Copy, llama_gguf: Path) -> None:
        path = copy(llama_gguf)
        overwrite(path, description_end(path, "output_norm.weight") - 12, struct.pack("<I", 77))
        assert "tensor output_norm.weight has unknown type 77" in refusal(path)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(place=st.integers(0, 9000), value=st.integers(0, 255))
    def test_bc126_any_changed_byte_opens_or_is_refused_by_name(
        self, tmp_path: Path, llama_gguf: Path, place: int, value: int
    ) -> None:
        """No error of the parser itself comes out, whatever a header says."""
        path = tmp_path / "changed.gguf"
        shutil.copy(llama_gguf, path)
        overwrite(path, place, bytes([value]))
        try:
            opened: object = open_model(str(path))
        except BadModel as error:
            opened = error
        assert isinstance(opened, ModelFiles) or "changed.gguf" in str(opened)


class TestTypes:
    def test_sizes_are_those_of_the_format(self) -> None:
        known = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
        ours = {number: (kind.name, kind.block, kind.bytes) for number, kind in STORAGE_TYPES.items()}
        assert ours == known

    @pytest.mark.parametrize("name", ["Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32"])
    def test_bc133_a_type_that_cannot_be_read_is_refused_by_name(self, copy: Copy, wide_gguf: Path, name: str) -> None:
        path = copy(wide_gguf)
        number = next(number for number, kind in STORAGE_TYPES.items() if kind.name == name)
        overwrite(path, description_end(path, "token_embd.weight") - 12, struct.pack("<I", number))
        message = refusal(path)
        assert f"wide.gguf: tensor token_embd.weight has type {name}, which is not supported" in message
        assert "Q4_K" in message

    def test_bc133_rows_must_divide_into_blocks(self, copy: Copy, llama_gguf: Path) -> None:
        path = copy(llama_gguf)
        overwrite(path, description_end(path, "token_embd.weight") - 12, struct.pack("<I", 12))
        assert "tensor token_embd.weight: rows of 64 do not divide into Q4_K blocks of 256" in refusal(path)


def description_end(path: Path, name: str) -> int:
    """The byte after the description of a tensor: name, dimensions, type, offset."""
    content = path.read_bytes()
    begin = content.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    dimensions: int = struct.unpack_from("<I", content, begin)[0]
    return begin + 4 + 8 * dimensions + 4 + 8
