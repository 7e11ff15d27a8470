"""Our own format: NAME.asmodel, an archive of a model's small files, and NAME.asparam, its weights.

Both are safetensors files. The archive's manifest.json has the storage, shape and checksum of every tensor and of every
other file, and the checksum of the header of NAME.asparam; manifest.crc32 is its own. Headers and small files are
checked when a model is opened, a tensor when it is mapped.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel, shown
from headrace_engine.models.files import FLOATS, Checksum, ModelFiles, StoredTensor
from headrace_engine.models.loaders.archive import read_entries, read_entry
from headrace_engine.models.loaders.choice import one_file
from headrace_engine.models.loaders.digest import digest_of
from headrace_engine.models.loaders.huggingface import open_checkpoint
from headrace_engine.models.loaders.json_files import parse_object
from headrace_engine.models.loaders.opening import ARCHIVE
from headrace_engine.models.loaders.safetensors import MAX_DIMENSIONS, read_header, value_bytes
from headrace_engine.models.loaders.shards import Checkpoint
from headrace_engine.models.table_rows import MXFP4, row_type

PARAM_SUFFIX = ".asparam"
MANIFEST, MANIFEST_SUM = "manifest.json", "manifest.crc32"
VERSION = 1

_LONGEST_MANIFEST = 64 * 2**20
LONGEST_ENTRY = 2**28
MOST_BYTES = 2**30
"""Maximum size of a model's small files together, in bytes: all are read when it is opened."""

_MOST_ENTRIES = 64


def open_directory(directory: Path, file_prefix: str) -> ModelFiles:
    """Open the model in a directory whose files have the prefix.

    Raises:
        BadModel: there is none or more than one, or as `open_archive`.
    """
    names = [path.name for path in directory.glob(f"*{ARCHIVE}")]
    return open_archive(directory / one_file(names, file_prefix, directory.name, f"{ARCHIVE} file"))


def open_archive(archive: Path) -> ModelFiles:
    """Open a model by its archive.

    Raises:
        BadModel: a file is missing, damaged, or belongs to another model.
    """
    manifest = read_manifest(archive)
    checkpoint = _checkpoint(archive, manifest)
    storages = {info["storage"] for info in manifest["tensors"].values()}
    files = open_checkpoint(archive, checkpoint, storages, rewritten=True)
    return replace(files, format=ModelFormat.HEADRACE, revision=_revision(manifest))


def read_manifest(archive: Path) -> Mapping[str, Any]:
    """Return an archive's manifest, after checking all files of the archive.

    Raises:
        BadModel: the archive is damaged, or of another version.
    """
    entries = read_entries(archive)
    if len(entries) > _MOST_ENTRIES or any(entry.storage != "U8" for entry in entries.values()):
        raise BadModel(f"{archive.name}: not a model of this format: its entries are not those of an archive")
    total = sum(entry.nbytes for name, entry in entries.items() if name not in (MANIFEST, MANIFEST_SUM))
    if total > MOST_BYTES:
        raise BadModel(f"{archive.name}: its files have {total} bytes together; allowed: at most {MOST_BYTES}")
    content = _entry(archive, MANIFEST, _LONGEST_MANIFEST)
    if _entry(archive, MANIFEST_SUM, 4) != zlib.crc32(content).to_bytes(4, "little"):
        raise BadModel(f"{archive.name}: damaged: {MANIFEST} does not have its checksum")
    manifest = parse_object(content, f"{archive.name}/{MANIFEST}")
    if manifest.get("version") != VERSION:
        text = f"has version {shown(manifest.get('version'))}; this build reads {VERSION}"
        raise BadModel(f"{archive.name}: {text}: write it again")
    sums = _mapping(archive, manifest, "files")
    if sums.keys() != entries.keys() - {MANIFEST, MANIFEST_SUM}:
        raise BadModel(f"{archive.name}: damaged: its files are not those of its manifest")
    for name, crc in sums.items():
        if zlib.crc32(_entry(archive, name, LONGEST_ENTRY)) != crc:
            raise BadModel(f"{archive.name}: damaged: {shown(name)} does not have its checksum")
    return manifest


def _entry(archive: Path, name: str, most: int) -> bytes:
    try:
        return read_entry(archive, name, most)
    except OSError as error:
        raise BadModel(f"{archive.name}: damaged: {name}: {error.strerror or error}") from error


def _mapping(archive: Path, manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = manifest.get(name)
    if not isinstance(found, dict):
        raise BadModel(f"{archive.name}: damaged: {name} of its manifest is no object")
    return found


def _checkpoint(archive: Path, manifest: Mapping[str, Any]) -> Checkpoint:
    """Return the tensors as the manifest describes them, after checking that they are those of the file."""
    param = archive.with_suffix(PARAM_SUFFIX)
    stored, header, size = read_header(param)
    if zlib.crc32(header) != manifest.get("param_header_crc32"):
        raise BadModel(f"{param.name}: damaged, or not the weights that {archive.name} describes: write both again")
    described = _mapping(archive, manifest, "tensors")
    if described.keys() != stored.keys():
        raise BadModel(f"{archive.name}: damaged: its tensors are not those of {param.name}")
    tensors = {name: _tensor(tensor, described[name]) for name, tensor in stored.items()}
    return Checkpoint(tensors, ((param.name, size, header),))


def _tensor(stored: StoredTensor, described: Any) -> StoredTensor:
    if not isinstance(described, dict):
        raise stored.error("has no description in the manifest")
    storage, shape = described.get("storage"), described.get("shape")
    if not isinstance(storage, str) or (row_type(storage) is None and storage not in FLOATS):
        raise stored.error(f"has storage {shown(storage)}, which this format does not have")
    if not isinstance(shape, list) or not all(type(each) is int and 0 < each < 2**31 for each in shape):
        raise stored.error(f"has shape {shown(shape)}, not a list of sizes")
    if len(shape) > MAX_DIMENSIONS:
        raise stored.error(f"has {len(shape)} dimensions; allowed: at most {MAX_DIMENSIONS}")
    checksum = Checksum(stored.offset, stored.nbytes, _crc(stored, described.get("crc32")))
    tensor = replace(stored, storage=storage, shape=tuple(shape), checksum=checksum)
    expected = _nbytes(tensor)
    if expected != stored.nbytes:
        raise stored.error(f"spans {stored.nbytes} bytes, but {storage} {shape} takes {expected}")
    return tensor


def _nbytes(tensor: StoredTensor) -> int:
    coded = row_type(tensor.storage)
    if coded is None:
        return tensor.elements * value_bytes(tensor.storage)
    if len(tensor.shape) != 2:
        raise tensor.error(f"has shape {list(tensor.shape)}, but {tensor.storage} is for matrices")
    if coded is MXFP4 and tensor.shape[1] % MXFP4.block:
        raise tensor.error(f"has rows of {tensor.shape[1]}, but {tensor.storage} is for multiples of {MXFP4.block}")
    return tensor.shape[0] * coded.row_bytes(tensor.shape[1])


def _crc(stored: StoredTensor, crc: object) -> int:
    if type(crc) is not int:
        raise stored.error("has no checksum")
    return crc


def _revision(manifest: Mapping[str, Any]) -> str:
    """Return a name of the contents: the checksums of all files and tensors, hashed."""
    sums = [*manifest["files"].items(), *((name, each["crc32"]) for name, each in manifest["tensors"].items())]
    return digest_of((name, crc if type(crc) is int else 0, b"") for name, crc in sorted(sums))
