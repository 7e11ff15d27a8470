"""Models in our own format: what is written is what was there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.cpu.weights.quantize import quantized
from headrace_engine.backends.cpu.weights.rows import Orders, TensorRows
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.backends.serialize.container import Container
from headrace_engine.backends.serialize.writer import serialize
from headrace_engine.config import ComputeDtype, ModelFormat
from headrace_engine.errors import AlreadyExists, BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.quantized_rows import GROUPS, QuantizedType, quantized_type
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.native import Format
from support.models.damage import cut_end, overwrite
from support.models.quantized_checkpoints import SCHEMES, write_quantized
from support.models.tiny_models import FAMILIES, make_tiny_family, make_tiny_gguf
from unit.backends.serialize.conftest import CODED, values, write

AS_IS = Storage(ComputeDtype.AUTO)


@pytest.mark.parametrize("scheme", ["gptq", "gptq 8 bits asymmetric", "awq"])
def test_codes_of_others_are_written_as_they_are(scheme: str, tmp_path: Path) -> None:
    """Of joined matrices too; and then read without the settings of the program that made them."""
    original = make_tiny_family(tmp_path / "source", "phi3")
    files = open_model(str(write_quantized(tmp_path / "made", original, *SCHEMES[scheme])[0]))
    write(files, tmp_path / "written", AS_IS)
    ours = open_model(str(tmp_path / "written"))
    assert all(info.stored.storage == files.tensors[name].stored.storage for name, info in ours.tensors.items())
    expected = values(files)
    for name, value in values(ours).items():
        assert torch.equal(value, expected[name]), name


def test_everything_but_the_weights_is_that_of_the_model(source: ModelFiles, written: Path) -> None:
    assert sorted(file.name for file in written.iterdir()) == ["m.asmodel", "m.asparam"]
    for path, options in ((written, {}), (written, {"file_prefix": "m"}), (written / "m.asmodel", {})):
        files = open_model(str(path), **options)
        assert (files.format, files.spec, files.generation) == (ModelFormat.HEADRACE, source.spec, source.generation)
        assert json.loads(files.config_json) == json.loads(source.config_json)
        assert (files.chat_template, files.named_ends, files.bos_id) == (
            source.chat_template, source.named_ends, source.bos_id,
        )  # fmt: skip
        assert load_tokenizer(files).encode("Once upon a time") == load_tokenizer(source).encode("Once upon a time")


def test_numbers_as_in_the_files_keep_their_bytes(source: ModelFiles, tmp_path: Path) -> None:
    write(source, tmp_path, AS_IS)
    files = open_model(str(tmp_path))
    for name, info in source.tensors.items():
        assert files.tensors[name].stored.storage == info.stored.storage
        assert bytes(map_tensor(files.tensors[name].stored)) == bytes(map_tensor(info.stored))


@pytest.mark.parametrize("dtype", [ComputeDtype.FLOAT32, ComputeDtype.BFLOAT16, ComputeDtype.FLOAT16])
def test_numbers_are_rounded_as_torch_does(source: ModelFiles, tmp_path: Path, dtype: ComputeDtype) -> None:
    write(source, tmp_path, Storage(dtype))
    kind = getattr(torch, dtype.lower())
    found, expected = values(open_model(str(tmp_path)), kind), values(source, kind)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("quant", CODED)
def test_codes_are_those_of_a_model_quantized_at_install(source: ModelFiles, tmp_path: Path, quant: str) -> None:
    storage = CODED[quant]
    write(source, tmp_path, storage)
    files = open_model(str(tmp_path))
    assert files.weight_bytes < source.weight_bytes / 2
    found = values(files)
    for name, info in source.tensors.items():
        kind = storage.quantizes(name) if len(info.shape) == 2 else None
        expected = values(source)[name].numpy()
        if kind is not None:
            rows = quantized(expected, kind, storage.group)
            tensor = TensorRows(files.tensors[name], Orders())
            expected = tensor.floats(0, tensor.outputs)
            coded = quantized_type(tensor.stored.storage)
            assert coded is not None
            codes, scales, offsets = coded.unpack(tensor.packed(0, tensor.outputs), tensor.inputs)
            assert np.array_equal(codes, rows.numbers)
            assert rows.scales is not None
            assert np.allclose(scales, rows.scales, rtol=0 if coded.scale_bits == 32 else 2**-10, atol=1e-7)
            assert (offsets is None) == (rows.offsets is None) == (kind is Format.INT8)
        assert np.array_equal(found[name].numpy(), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_written_and_read(family: str, tmp_path: Path) -> None:
    """Also those whose files hold several matrices in one tensor."""
    source = open_model(str(make_tiny_family(tmp_path / "source", family)))
    for quant, storage in {"NONE": AS_IS, **CODED}.items():
        write(source, tmp_path / quant, storage)
        files = open_model(str(tmp_path / quant))
        assert files.spec == source.spec
        found, expected = values(files), values(source)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            most = 0.0 if quant == "NONE" or tensor.dim() == 1 else float(tensor.abs().max()) / 7
            assert float((found[name] - tensor).abs().max()) <= most


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("inputs", [1, 17, 64, 160])
def test_rows_of_codes_are_read_as_they_were_packed(bits: int, group: int, inputs: int) -> None:
    random_numbers = np.random.default_rng(bits + group + inputs)
    for scale_bits in (16, 32):
        kind = QuantizedType(bits, group, scale_bits, bits == 4)
        assert quantized_type(kind.name) == kind
        codes = random_numbers.integers(0, 2**bits, (5, inputs), dtype=np.uint8)
        numbers = random_numbers.standard_normal((2, 5, kind.scales(inputs))).astype(f"f{scale_bits // 8}")
        scales, offsets = numbers.astype(np.float32)
        packed = kind.pack(codes, scales, offsets if bits == 4 else None)
        assert packed.shape == (5, kind.row_bytes(inputs))
        unpacked = kind.unpack(packed, inputs)
        assert np.array_equal(unpacked[0], codes)
        assert np.array_equal(unpacked[1], scales)
        assert unpacked[2] is None if bits == 8 else np.array_equal(unpacked[2], offsets)  # type: ignore[arg-type]
        at = np.arange(inputs) // (group or inputs)
        expected = scales[:, at] * (codes.astype(np.float32) - (128 if bits == 8 else 0))
        expected = expected if bits == 8 else expected + offsets[:, at]
        assert np.array_equal(kind.floats(packed, inputs), expected)


@pytest.mark.parametrize(
    "name", ["Q8_0", "INT8-5-F16", "INT8-0-F8", "INT8", "int8-0-F16", "INT8-0-F16 ", "INT8-00-F16"]
)
def test_other_names_are_no_type_of_ours(name: str) -> None:
    assert quantized_type(name) is None


class TestWriting:
    def test_what_was_made_in_the_same_way_is_kept(self, source: ModelFiles, copy: Path) -> None:
        before = [file.stat().st_mtime_ns for file in sorted(copy.iterdir())]
        assert not write(source, copy, CODED["INT8"], skip_if_exists=True)
        assert [file.stat().st_mtime_ns for file in sorted(copy.iterdir())] == before

    def test_what_was_made_otherwise_or_is_damaged_is_written_anew(self, source: ModelFiles, copy: Path) -> None:
        assert write(source, copy, CODED["INT4"], skip_if_exists=True)
        assert not write(source, copy, CODED["INT4"], skip_if_exists=True)
        cut_end(copy / "m.asparam", 1)
        assert write(source, copy, CODED["INT4"], skip_if_exists=True)
        open_model(str(copy))

    def test_two_writers_do_not_mix(self, source: ModelFiles, copy: Path) -> None:
        with Container(copy / "m.asparam", []), pytest.raises(AlreadyExists, match="being written by another call"):
            write(source, copy, AS_IS)
        open_model(str(copy))

    def test_a_failure_leaves_what_was_there(self, source: ModelFiles, copy: Path) -> None:
        def fail(*_: Any) -> None:
            raise OSError("no space")

        with pytest.raises(OSError, match="no space"):
            serialize(source, copy, "m", AS_IS, skip_if_exists=False, progress=fail)
        assert sorted(file.name for file in copy.iterdir()) == ["m.asmodel", "m.asparam"]
        values(open_model(str(copy)))

    def test_packed_models_are_not_written_again(self, source: ModelFiles, written: Path, tmp_path: Path) -> None:
        for path in (written, make_tiny_gguf(tmp_path / "m.gguf", source.path)):
            with pytest.raises(BadModel, match="is packed already: install it as it is"):
                write(open_model(str(path)), tmp_path, AS_IS)

    def test_values_that_do_not_fit_are_refused(self, source: ModelFiles, tmp_path: Path) -> None:
        folder = shutil.copytree(source.path, tmp_path / "large")
        norm = open_model(str(folder)).tensors["final_norm"].stored
        overwrite(norm.file, norm.offset, np.float32(1e30).tobytes())
        with pytest.raises(BadModel, match="FLOAT16 does not"):
            write(open_model(str(folder)), tmp_path, Storage(ComputeDtype.FLOAT16))
        assert [file.name for file in tmp_path.iterdir()] == ["large"]
