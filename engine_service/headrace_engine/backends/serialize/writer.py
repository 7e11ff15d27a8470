"""Writes a Hugging Face model in our own format, with its weights as numbers or quantized."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.backends.serialize.container import Container
from headrace_engine.backends.serialize.tensors import whole_tensors, written
from headrace_engine.config import ComputeDtype, ModelFormat
from headrace_engine.core.runner import Progress
from headrace_engine.errors import BadModel
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.files import ModelFiles, TensorInfo
from headrace_engine.models.loaders.headrace import (
    LONGEST_ENTRY,
    MANIFEST,
    MANIFEST_SUM,
    MOST_BYTES,
    PARAM_SUFFIX,
    VERSION,
    open_archive,
    read_manifest,
)
from headrace_engine.models.loaders.opening import ARCHIVE, has_file, read_model_file
from headrace_engine.models.vocabulary.huggingface import build_tokenizer

_TOKENIZER = "tokenizer.json"
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json", "additional_chat_templates/tool_use.jinja", _TOKENIZER,
)  # fmt: skip
"""Files of a model's directory, besides its weights, that are read when it is opened."""


def serialize(
    files: ModelFiles, folder: Path, name: str, storage: Storage, *, skip_if_exists: bool, progress: Progress
) -> bool:
    """Write NAME.asparam and NAME.asmodel; return False if they were there already.

    Args:
        files: a model in Hugging Face's format.
        folder: created if it does not exist.
        storage: storage of the weights; dtype AUTO: numbers as in the files.
        skip_if_exists: keep files that were made of the same model with the same storage.

    Raises:
        BadModel: the model is of another format, has changed since it was opened, or has values that do not fit.
        AlreadyExists: another process is writing these files.
        OSError: they cannot be written.
    """
    if files.format is not ModelFormat.HF:
        text = f"is of format {files.format}, which is packed already: install it as it is"
        raise BadModel(f"{files.path.name}: {text}")
    archive = folder / f"{name}{ARCHIVE}"
    stored = {"dtype": str(storage.dtype), "quant": str(storage.quant), "group": storage.group}
    made = {"revision": files.revision, **stored}
    if skip_if_exists and _is_made(archive, made):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    _check_disk_space(folder, files, storage)
    small = _small_files(files)
    tensors = whole_tensors(files)
    names = [info.stored.name for info in tensors]
    with (
        Container(folder / f"{name}{PARAM_SUFFIX}", names) as param,
        Container(archive, [*small, MANIFEST, MANIFEST_SUM]) as entries,
    ):
        described = _write_tensors(param, tensors, storage, files.weight_bytes, progress)
        sums = {entry: _add(entries, entry, content) for entry, content in small.items()}
        parts = {"param_header_crc32": zlib.crc32(param.header()), "files": sums, "tensors": described}
        crc = _add(entries, MANIFEST, json.dumps({"version": VERSION, "made": made, **parts}).encode())
        _add(entries, MANIFEST_SUM, crc.to_bytes(4, "little"))
        param.commit()
        entries.commit()
    return True


def _add(entries: Container, name: str, content: bytes) -> int:
    """Add a file to an archive; return its CRC-32."""
    return entries.add(name, "U8", [len(content)], [content])


def _write_tensors(
    param: Container, tensors: Sequence[TensorInfo], storage: Storage, total: int, progress: Progress
) -> dict[str, Any]:
    """Write all tensors; return their descriptions for the manifest."""
    described: dict[str, Any] = {}
    done = 0
    progress(ModelPhase.CONVERTING, done, total)
    for info in tensors:
        tensor = written(info, storage)
        crc = param.add(info.stored.name, tensor.dtype, tensor.shape, tensor.parts)
        described[info.stored.name] = {"storage": tensor.storage, "shape": list(info.shape), "crc32": crc}
        done += info.stored.file_bytes
        progress(ModelPhase.CONVERTING, done, total)
    return described


def _small_files(files: ModelFiles) -> dict[str, bytes]:
    """Return the model's other files by name; a tokenizer of an older format as tokenizer.json."""
    folder = files.tokenizer_path
    small = {name: read_model_file(folder / name, LONGEST_ENTRY) for name in _SMALL_FILES if has_file(folder / name)}
    if _TOKENIZER not in small:
        small[_TOKENIZER] = build_tokenizer(folder).tokenizer.to_str().encode()
    total = sum(map(len, small.values()))
    if total > MOST_BYTES:
        raise BadModel(f"{folder.name}: its small files have {total} bytes together; allowed: at most {MOST_BYTES}")
    return small


def _is_made(archive: Path, made: Mapping[str, Any]) -> bool:
    """True if files are there that were made so. Damaged ones, and those of other settings, are written anew."""
    if not has_file(archive):
        return False
    try:
        open_archive(archive)
        return bool(read_manifest(archive).get("made") == made)
    except BadModel:
        return False


def _check_disk_space(folder: Path, files: ModelFiles, storage: Storage) -> None:
    """Raise OSError unless the disk keeps an eighth of the files free: a full disk would fail other programs too."""
    width = {ComputeDtype.AUTO: files.bytes_per_value, ComputeDtype.FLOAT32: 4}.get(storage.dtype, 2)
    bits = {"INT8": 10, "INT4": 6}.get(str(storage.quant), 8 * width)
    needed, free = files.num_held * bits // 8, shutil.disk_usage(folder).free
    if free < needed + needed // 8:
        raise OSError(f"{needed} bytes are needed, {free} are free")
