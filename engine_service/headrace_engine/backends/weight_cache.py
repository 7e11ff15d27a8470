"""Cache of packed weights on disk: later starts of a model skip unpacking and packing.

A file's name identifies the model and its storage; its header identifies the state of the model's files that it was
built from. Stale or damaged files are replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from headrace_engine.backends.cpu.weights.rows import padded_head_dim
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.backends.weight_file import Contents, read_file, write_file
from headrace_engine.environment import cache_root
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.loaders.opening import stat_model_file

_VERSION = 1
"""Version of the files and of quantization: files of other versions are ignored."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Identity of a file of packed weights.

    Attributes:
        name: hash of the model's path and storage.
        state: hash of the state of the model's files.
    """

    name: str
    state: str


def cache_key(files: ModelFiles, storage: Storage, layout: object) -> CacheKey:
    """Return the key of a model with a storage and a layout of packed matrices.

    Raises:
        BadModel: one of its files is gone.
    """
    padded = (padded_head_dim(files.spec), files.spec.vocab_size)
    how = (_VERSION, layout, str(files.path.resolve()), storage.dtype, storage.quant, storage.group, padded)
    parts = [files.revision]
    for file in sorted({file.resolve() for info in files.tensors.values() for file in info.stored.files}):
        stat = stat_model_file(file)
        parts.append(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}")
    return CacheKey(_digest(map(str, how)), _digest(parts))


def _digest(parts: Iterable[str]) -> str:
    return blake2b("\1".join(parts).encode(), digest_size=16).hexdigest()


def cache_folder() -> Path | None:
    """Return the cache folder; None if the user has no home."""
    root = cache_root()
    return None if root is None else root / "weights"


class WeightCache:
    """Packed-weights files in a folder.

    Args:
        folder: created with the first file; None: nothing is cached.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, key: CacheKey, contents: Contents, threads: int) -> bool:
        """Fill empty contents from the file of a key. Return False, leaving them empty, if none is usable."""
        if self._folder is None:
            return False
        path = self._path(key)
        try:
            read_file(path, key.state, contents, threads)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            contents.clear()
            _log.info("weight_cache_not_used: %s: %s; the weights are packed anew", path, error)
            return False
        return True

    def write(self, key: CacheKey, contents: Contents) -> None:
        """Write contents to the file of a key. Errors are logged, not raised."""
        if self._folder is None:
            return
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_file(path, key.state, contents)
        except OSError as error:
            _log.warning("weights_not_cached: %s: %s", path, error)

    def _path(self, key: CacheKey) -> Path:
        assert self._folder is not None
        return self._folder / f"{key.name}.weights"
