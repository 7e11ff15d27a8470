"""Damaged and hostile files in our own format are refused before they are used."""

from __future__ import annotations

import json
import random
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.backends.serialize.container import Container
from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.loaders.archive import read_entry
from headrace_engine.models.loaders.headrace import LONGEST_ENTRY, MOST_BYTES
from headrace_engine.models.loaders.safetensors import read_header
from support.models.damage import edit_header, overwrite, refusal
from unit.backends.serialize.conftest import CODED, values, write


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
