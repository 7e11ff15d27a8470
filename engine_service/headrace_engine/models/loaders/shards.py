"""The safetensors files of a model in a directory, and all their tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.layout import name_some
from headrace_engine.models.loaders.json_files import read_object
from headrace_engine.models.loaders.opening import has_file
from headrace_engine.models.loaders.safetensors import read_header

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_INDEX = ".safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of all files of one model, and the headers of these files, in the order of file names."""

    tensors: Mapping[str, StoredTensor]
    headers: tuple[tuple[str, int, bytes], ...]


def read_checkpoint(directory: Path, prefix: str) -> Checkpoint:
    """Read the headers of a model's files in a directory.

    Args:
        prefix: prefix of the files' names; "" for a directory with one model.

    Raises:
        BadModel: there is no model or more than one, a shard is missing or damaged, or index and files disagree.
    """
    index = None if _is_file(directory, prefix) else _index(directory, prefix)
    if index is None:
        return _read(_files_without_index(directory, prefix))
    weight_map = _weight_map(index)
    checkpoint = _read([directory / name for name in sorted(set(weight_map.values()))])
    _check_index(index, weight_map, checkpoint.tensors)
    return checkpoint


def is_pickle(path: Path) -> bool:
    """True if the file is a pickle by its name: loading it would run code."""
    return path.suffix in _PICKLES


def pickle_refusal(names: Sequence[str]) -> BadModel:
    """Return the error about a checkpoint that only exists as pickles."""
    return BadModel(
        f"{name_some(names)}: pickled weights run code when they are loaded and are not read."
        " Save the model as safetensors (in transformers: model.save_pretrained(directory))"
    )


def _is_file(directory: Path, prefix: str) -> bool:
    return bool(prefix) and has_file(directory / prefix) and not (directory / prefix).is_dir()


def _index(directory: Path, prefix: str) -> Path | None:
    found = [path for path in sorted(directory.glob(f"*{_INDEX}")) if path.name.startswith(prefix)]
    exact = [path for path in found if path.name in (f"model{_INDEX}", f"{prefix}{_INDEX}")]
    candidates = exact or found
    if len(candidates) > 1:
        raise _several(found, prefix)
    return candidates[0] if candidates else None


def _weight_map(index: Path) -> dict[str, str]:
    content = read_object(index).get("weight_map")
    if not isinstance(content, dict) or not content:
        raise BadModel(f"{index.name}: weight_map must be an object that names a file for every tensor")
    for tensor, file in content.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file:
            text = f"is said to be in {shown(file)}, which is no safetensors file here"
            raise BadModel(f"{index.name}: tensor {shown(tensor)} {text}")
    return content


def _check_index(index: Path, weight_map: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
    for name, file in weight_map.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.file.name != file:
            found = f"it is in {tensor.file.name}" if tensor else "no file has it"
            raise BadModel(f"{index.name}: tensor {shown(name)} is said to be in {file}, but {found}")


def _files_without_index(directory: Path, prefix: str) -> list[Path]:
    found = [path for path in sorted(directory.glob("*.safetensors")) if path.name.startswith(prefix)]
    if _is_file(directory, prefix):
        found = [directory / prefix]
    if not found:
        raise _no_weights(directory, prefix)
    exact = [path for path in found if path.name in ("model.safetensors", f"{prefix}.safetensors")]
    if len(exact) == 1:
        return exact
    shards = [_SHARD.fullmatch(path.name) for path in found]
    if any(shard is None for shard in shards):
        if len(found) > 1:
            raise _several(found, prefix)
        return found
    return _complete(directory, [shard for shard in shards if shard is not None], prefix)


def _complete(directory: Path, shards: Sequence[re.Match[str]], prefix: str) -> list[Path]:
    """Return all shards of the only model in the directory, from the numbers in their names."""
    models = {(shard["stem"], shard["count"]) for shard in shards}
    if len(models) > 1:
        raise _several([directory / shard.string for shard in shards], prefix)
    (stem, count) = next(iter(models))
    return [directory / f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)]


def _read(files: Sequence[Path]) -> Checkpoint:
    absent = [file.name for file in files if not has_file(file)]
    if absent:
        raise BadModel(f"{name_some(absent)}: absent, but the model's other files name it: the copy is incomplete")
    tensors: dict[str, StoredTensor] = {}
    headers = []
    for file in files:
        found, header, size = read_header(file)
        for name in found.keys() & tensors.keys():
            raise BadModel(f"{file.name}: tensor {name} is also in {tensors[name].file.name}")
        tensors |= found
        headers.append((file.name, size, header))
    return Checkpoint(tensors, tuple(headers))


def _several(files: Sequence[Path], prefix: str) -> BadModel:
    names = name_some(file.name for file in files)
    begin = f"several files begin with {prefix!r}" if prefix else "the directory holds several models"
    return BadModel(f"{files[0].parent.name}: {begin}: {names}. Set file_prefix to the beginning of one model's names")


def _no_weights(directory: Path, prefix: str) -> BadModel:
    pickles = sorted(path.name for path in directory.iterdir() if is_pickle(path))
    if pickles:
        return pickle_refusal(pickles)
    named = f" whose names begin with {prefix!r}" if prefix else ""
    return BadModel(f"{directory.name}: no safetensors files{named}")
