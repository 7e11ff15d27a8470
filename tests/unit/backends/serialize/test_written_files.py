"""Models in our own format: what is written is what was there, and damaged files are refused before they are used."""

from __future__ import annotations

import json
import random
import re
import shutil
import zlib
from collections.abc import Callable
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
from headrace_engine.config import ComputeDtype, ModelFormat, WeightQuant
from headrace_engine.errors import AlreadyExists, BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.loaders.archive import read_entry
from headrace_engine.models.loaders.headrace import LONGEST_ENTRY, MOST_BYTES
from headrace_engine.models.loaders.safetensors import read_header
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.quantized_rows import GROUPS, QuantizedType, quantized_type
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.models.weights import read_tensor
from headrace_engine.native import Format
from support.models.damage import cut_end, edit_header, overwrite, refusal
from support.models.quantized_checkpoints import SCHEMES, write_quantized
from support.models.tiny_models import FAMILIES, make_tiny_family, make_tiny_gguf, make_tiny_qwen2

AS_IS = Storage(ComputeDtype.AUTO)
CODED = {"INT8": Storage(ComputeDtype.AUTO, WeightQuant.INT8), "INT4": Storage(ComputeDtype.AUTO, WeightQuant.INT4, 32)}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A model with biases and a tied head."""
    return open_model(str(make_tiny_qwen2(tmp_path_factory.mktemp("source") / "qwen", shards=2)))


@pytest.fixture(scope="module")
def written(source: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same model with weights in 8 bits, as m.asmodel and m.asparam."""
    folder = tmp_path_factory.mktemp("written")
    assert write(source, folder, CODED["INT8"])
    return folder


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def write(files: ModelFiles, folder: Path, storage: Storage, **options: Any) -> bool:
    done: list[tuple[int, int | None]] = []
    options = {"skip_if_exists": False, **options}
    was = serialize(files, folder, "m", storage, progress=lambda _, *counts: done.append(counts), **options)
    assert not was or (done[0][0], done[-1]) == (0, (files.weight_bytes, files.weight_bytes))
    return was


def values(files: ModelFiles, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: read_tensor(info, dtype, CPU) for name, info in files.tensors.items()}


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


def fails(folder: Path) -> str:
    """The error of a damaged model, when it is opened or when its weights are read."""
    with pytest.raises(BadModel) as caught:
        values(open_model(str(folder), format=ModelFormat.HEADRACE))
    return caught.value.message


class TestDamage:
    @pytest.mark.parametrize("name", ["m.asmodel", "m.asparam"])
    def test_every_changed_byte_is_found(self, copy: Path, name: str) -> None:
        file, chance = copy / name, random.Random(name)
        content = file.read_bytes()
        places = [*range(16), *chance.sample(range(len(content)), 200), len(content) - 1]
        for place in places:
            overwrite(file, place, bytes([content[place] ^ 1 << chance.randrange(8)]))
            assert name.split(".")[0] in fails(copy)
            overwrite(file, place, content[place : place + 1])
        values(open_model(str(copy)))

    @pytest.mark.parametrize("name", ["m.asmodel", "m.asparam"])
    def test_a_cut_an_empty_and_a_missing_file(self, copy: Path, name: str) -> None:
        whole = (copy / name).read_bytes()
        for content in (whole[:-1], whole[: len(whole) // 2], whole[:8], b"", whole + b"\0"):
            (copy / name).write_bytes(content)
            assert name in fails(copy)
        (copy / name).unlink()
        assert "m" in fails(copy)

    def test_files_of_two_models_are_told_apart(self, source: ModelFiles, copy: Path, tmp_path: Path) -> None:
        write(source, tmp_path / "other", CODED["INT4"])
        shutil.copy(tmp_path / "other" / "m.asparam", copy)
        assert "not the weights that m.asmodel describes" in fails(copy)

    def test_a_fifo_and_a_folder_are_no_files(self, copy: Path) -> None:
        import os

        for name in ("m.asmodel", "m.asparam"):
            (copy / name).rename(copy / "aside")
            os.mkfifo(copy / name)
            assert "not a regular file but a FIFO" in fails(copy)
            (copy / name).unlink()
            (copy / name).mkdir()
            assert "not a regular file but a directory" in fails(copy)
            (copy / name).rmdir()
            (copy / "aside").rename(copy / name)

    def test_two_models_in_a_folder_need_a_prefix(self, copy: Path) -> None:
        for name in ("asmodel", "asparam"):
            shutil.copy(copy / f"m.{name}", copy / f"other.{name}")
        assert "more than one .asmodel file" in refusal(copy)
        assert open_model(str(copy), file_prefix="other").path.name == "other.asmodel"
        assert "no .asmodel file that begins with 'x'" in refusal(copy, file_prefix="x", format=ModelFormat.HEADRACE)


def with_manifest(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest of a model as an attacker would: all checksums are right afterwards."""
    archive = folder / "m.asmodel"
    names = [name for name in read_header(archive)[0] if name not in ("manifest.json", "manifest.crc32")]
    small = {name: read_entry(archive, name, 2**30) for name in names}
    manifest = json.loads(read_entry(archive, "manifest.json", 2**30))
    content = json.dumps(edit(manifest) or manifest).encode()
    with Container(archive, [*small, "manifest.json", "manifest.crc32"]) as target:
        for name, each in {**small, "manifest.json": content}.items():
            target.add(name, "U8", [len(each)], [each])
        target.add("manifest.crc32", "U8", [4], [zlib.crc32(content).to_bytes(4, "little")])
        target.commit()


def of_first(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """Change the description of the embedding."""
    return lambda manifest: manifest["tensors"]["model.embed_tokens.weight"].update(changes)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another version": (lambda m: m.update(version=2), "has version 2; this build reads 1"),
    "a long version": (lambda m: m.update(version="9" * 10**6), "has version '999"),
    "no object": (lambda _: [1], "must hold a JSON object"),
    "files of no kind": (lambda m: m.update(files=[]), "files of its manifest is no object"),
    "a file too many": (lambda m: m["files"].update({"../../etc/passwd": 1}), "files are not those of its manifest"),
    "tensors of no kind": (lambda m: m.update(tensors=5), "tensors of its manifest is no object"),
    "a tensor too many": (lambda m: m["tensors"].update(x={}), "tensors are not those of m.asparam"),
    "a tensor too few": (
        lambda m: m["tensors"].pop("model.norm.weight") and None,
        "tensors are not those of m.asparam",
    ),
    "no description": (lambda m: m["tensors"].update({"model.norm.weight": 1}), "no description in the manifest"),
    "an unknown storage": (of_first(storage="I8"), "storage 'I8', which this format does not have"),
    "another storage": (of_first(storage="F64"), "bytes, but F64"),
    "a storage of no kind": (of_first(storage={}), "storage {}, which"),
    "a long shape": (of_first(shape=[2**31, 2**31]), "not a list of sizes"),
    "huge numbers": (of_first(shape=[10**99]), "not a list of sizes"),
    "a product that overflows": (of_first(shape=[2**30] * 8), "is for matrices"),
    "a shape of many sizes": (of_first(shape=[2**31 - 1] * 10**6, storage="F32"), "has 1000000 dimensions; allowed"),
    "a negative size": (of_first(shape=[-1, -1]), "not a list of sizes"),
    "a size of 0": (of_first(shape=[0, 5]), "not a list of sizes"),
    "a swapped shape": (of_first(shape=[64, 384]), "bytes, but"),
    "no checksum": (of_first(crc32=None), "has no checksum"),
    "another checksum": (of_first(crc32=-1), "does not have its checksum"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused(copy: Path, case: str) -> None:
    edit, text = HOSTILE[case]
    with_manifest(copy, edit)
    assert text in fails(copy)


def test_an_archive_with_a_long_header_is_not_parsed(copy: Path) -> None:
    """It would be parsed again for each file of the archive."""
    edit_header(copy / "m.asmodel", lambda header: header.update(__metadata__={"x": "y" * 2**20}))
    assert "m.asmodel: damaged, or not a safetensors file: header length 1" in fails(copy)
    assert "is above the format's limit 1048576" in fails(copy)


def test_files_that_are_too_much_together_are_not_read(copy: Path) -> None:
    """Each is within its limit. They are one hole: reading them would take their memory, not their disk."""
    archive = copy / "m.asmodel"
    end = max(entry.offset + entry.nbytes for entry in read_header(archive)[0].values())
    start = min(entry.offset for entry in read_header(archive)[0].values())

    def add(header: dict[str, Any]) -> None:
        for number in range(5):
            begin = end - start + number * LONGEST_ENTRY
            header[f"x{number}"] = {
                "dtype": "U8",
                "shape": [LONGEST_ENTRY],
                "data_offsets": [begin, begin + LONGEST_ENTRY],
            }

    edit_header(archive, add)
    with archive.open("r+b") as file:
        file.truncate(file.seek(0, 2) + 5 * LONGEST_ENTRY)
    assert re.fullmatch(rf"m\.asmodel: its files have \d+ bytes together; allowed: at most {MOST_BYTES}", fails(copy))


def test_a_header_that_promises_too_much_costs_nothing(copy: Path) -> None:
    """Sparse files of terabytes, and lengths that no file has."""
    for name in ("m.asmodel", "m.asparam"):
        with (copy / name).open("r+b") as file:
            size = file.seek(0, 2)
            file.truncate(2**40)
            assert "too long" in fails(copy)
            file.truncate(size)
        whole = (copy / name).read_bytes()
        edit_header(
            copy / name, lambda header: header.update(x={"dtype": "U8", "shape": [2**62], "data_offsets": [0, 2**62]})
        )
        assert name in fails(copy)
        (copy / name).write_bytes(whole)
