"""Restricts callers' model paths to the engine's model roots.

A path outside is refused by its text alone, so callers cannot learn whether it exists. Inside, links are followed as
long as they do not lead out of the roots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.loaders.hub import is_name
from headrace_engine.regular_files import is_there

_NESTED = "additional_chat_templates"
"""The only subfolder of a model's folder that is read."""

MEMORY = "memory:"
"""Begins the path of a model in memory; its name follows."""

_READ = (".safetensors", ".gguf", ".asmodel", ".asparam", ".json", ".jinja", ".model", ".txt")
"""Suffixes of the files that are read in a model's folder."""

_LINK_OUT = (
    "leads through a link outside this engine's model roots; "
    "its operator may add the folder there with --model-root DIR"
)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A resolved model path.

    Attributes:
        path: path on this host, or name on a hub.
        is_hub_name: `path` is a name on a hub, even if a local path of that name exists.
    """

    path: str
    is_hub_name: bool = False


def check_paths(config: RuntimeConfig, options: EngineOptions) -> None:
    """Refuse a config with a path outside the engine's model roots, without accessing any file.

    Raises:
        InvalidArgument: as `check_path`, naming the field.
    """
    check_path(config.model_path, options)
    if config.draft_model:
        check_path(config.draft_model, options, "config.draft_model")
    for index, adapter in enumerate(config.adapters):
        check_path(adapter.path, options, f"config.adapters[{index}].path")


def check_path(path: str, options: EngineOptions, field: str = "config.model_path") -> None:
    """Refuse a path outside the engine's model roots, without accessing any file.

    Args:
        field: path of the field that gave it.

    Raises:
        InvalidArgument: the path lies outside, or is not a valid path.
    """
    roots = options.model_roots
    if _in_memory(path, options) or roots is None or (options.allow_hub and is_name(path)):
        return
    if "\0" in path or not _is_encodable(path):
        raise InvalidArgument.field(field, f"= {path!r} is not a valid path")
    if not roots:
        text = "this engine opens no paths that callers name; its operator allows that with --model-root DIR"
        raise InvalidArgument.field(field, f"= {path!r}: {text}")
    if not any(_candidates(path, roots)):
        raise _outside(path, field)


def check_prefix(prefix: str, field: str = "config.file_prefix") -> None:
    """Refuse a file prefix that would lead out of the directory.

    Raises:
        InvalidArgument: it contains a folder.
    """
    if "/" in prefix or "\0" in prefix:
        raise InvalidArgument.field(field, f"= {prefix!r} must be the beginning of a file name, without a folder")


def locate(path: str, options: EngineOptions, field: str = "config.model_path") -> ModelLocation:
    """Resolve a model path. Relative paths are resolved against the roots; the first root where the path exists wins.

    Args:
        field: path of the field that gave it.

    Raises:
        InvalidArgument: it leads outside the engine's model roots.
        BadModel: the path does not exist, or that cannot be determined.
    """
    roots, in_memory = options.model_roots, _in_memory(path, options)
    if in_memory is not None:
        if not in_memory.is_dir():
            raise BadModel(f"{path}: no such model is in memory; it ends with its engine, or was freed")
        return ModelLocation(str(in_memory))
    if roots is None:
        return ModelLocation(path)
    check_path(path, options, field)
    for candidate in _candidates(path, roots):
        if not _leads_inside(candidate, roots):
            raise InvalidArgument.field(field, f"= {path!r} {_LINK_OUT}")
        if _is_there(candidate, path):
            _check_links(candidate, roots)
            return ModelLocation(str(candidate))
    if options.allow_hub and is_name(path):
        return ModelLocation(path, is_hub_name=True)
    raise BadModel(f"{path}: no such file or directory in this engine's model roots")


def locate_output(folder: str, options: EngineOptions) -> Path:
    """Return the folder that a caller names to write into: the first one inside a root.

    Raises:
        InvalidArgument: it lies outside the engine's roots for writing.
    """
    roots = options.write_roots
    if "\0" in folder or not _is_encodable(folder):
        raise InvalidArgument.field("output_dir", f"= {folder!r} is not a valid path")
    if roots is None:
        return Path(folder).expanduser().absolute()
    found = next((each for each in _candidates(folder, roots) if _leads_inside(each, roots)), None)
    if found is None:
        text = "lies outside the folders that this engine writes into; its operator adds one with --write-root DIR"
        raise InvalidArgument.field("output_dir", f"= {folder!r} {text}")
    return found


def _in_memory(path: str, options: EngineOptions) -> Path | None:
    """Return the folder of a model in memory; None: the path is another one."""
    name = path.removeprefix(MEMORY)
    if options.memory_dir is None or name == path or not name or "/" in name or name.startswith("."):
        return None
    return options.memory_dir / name


def _candidates(path: str, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the paths inside the roots that a path may refer to, by its text."""
    for root, real in zip(roots, _real(roots), strict=True):
        joined = Path(os.path.normpath(os.path.join(real, path)))
        given = Path(os.path.normpath(path))
        if joined.is_relative_to(real):
            yield joined
        elif given.is_absolute() and given.is_relative_to(base := Path(os.path.abspath(root))):
            yield real / given.relative_to(base)


def resolve_roots(options: EngineOptions) -> None:
    """Resolve the roots at startup: a hung file system then blocks no request."""
    roots = options.model_roots or ()
    _real(roots)
    absent_roots(roots)


@cache
def absent_roots(roots: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the roots that were no directories when first asked."""
    return tuple(root for root in roots if not os.path.isdir(root))


@cache
def _real(roots: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the resolved roots; cached, since a file system that hangs must not block requests."""
    return tuple(Path(os.path.realpath(root)) for root in roots)


def _is_there(candidate: Path, path: str) -> bool:
    try:
        return is_there(candidate)
    except OSError as error:
        raise BadModel(f"{error.strerror or error}: {path}") from error  # Errors shorten a long path themselves.


def _check_links(candidate: Path, roots: tuple[Path, ...]) -> None:
    """Refuse links that lead out of the roots among the files that are read along with the path itself."""
    folder = candidate if candidate.is_dir() else candidate.parent
    if candidate != folder and candidate.suffix != ".safetensors":
        return
    for entry in (*_links(folder), *_links(folder / _NESTED)):
        if not _leads_inside(entry, roots):
            raise BadModel(f"{entry.name}: is a link that leads outside this engine's model roots")


def _links(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_symlink() and _is_read(entry.name)]
    except OSError:  # Missing or unreadable: then no file in it is read.
        return []


def _is_read(name: str) -> bool:
    return name == _NESTED or name.endswith(_READ)


def _leads_inside(path: Path, roots: tuple[Path, ...]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(root) for root in _real(roots))


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _outside(path: str, field: str) -> InvalidArgument:
    text = (
        "lies outside this engine's model roots; give a path inside one, or relative to one, "
        "or let its operator add one with --model-root DIR"
    )
    return InvalidArgument.field(field, f"= {path!r} {text}")
