"""Open a model by path or hub name: find its files, choose the loader, check the headers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace_engine.config import ModelFormat, RopeScaling
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.layout import name_some
from headrace_engine.models.loaders import gguf, headrace, hub, huggingface
from headrace_engine.models.loaders.choice import one_file
from headrace_engine.models.loaders.opening import ARCHIVE, has_file
from headrace_engine.models.loaders.shards import is_pickle, pickle_refusal
from headrace_engine.models.rope.override import apply_rope_scaling


def open_model(
    path: str,
    *,
    format: ModelFormat = ModelFormat.AUTO,  # noqa: A002
    file_prefix: str = "",
    revision: str = "",
    hub: str = "",
    rope_scaling: RopeScaling | None = None,
    vocab_size: int = 0,
    hub_only: bool = False,
) -> ModelFiles:
    """Find a model and check it as far as its headers allow; no weights are read.

    Args:
        path: a directory, a file, or a name on a hub; local paths take precedence.
        file_prefix: prefix of the model's file names, for directories that hold several models.
        revision: branch, tag or commit on the hub; "" means its main branch. Not for local files.
        hub: address of the hub; "" means the default one. Not for local files.
        vocab_size: number of vocabulary rows to use of the embedding and the head; 0: all.
        hub_only: the path is a name on a hub, even if a local path of that name exists.
        rope_scaling: overrides the model's own scaling in the spec; None keeps it.

    Raises:
        BadModel: the model is missing, damaged, incomplete, of an unsupported kind, or cannot be fetched.
        InvalidArgument: the format or scaling is not supported yet, or an argument does not apply.
    """
    local = Path(path).expanduser().absolute()
    if hub_only or not local.exists():
        local = _fetch(path, format, file_prefix, revision, hub)
    elif revision or hub:
        name = "revision" if revision else "hub"
        raise InvalidArgument.field(f"config.{name}", f"= {revision or hub!r} is for hub names, but the path is local")
    files = _open_local(local, format, file_prefix)
    if rope_scaling is not None:
        files = replace(files, spec=apply_rope_scaling(files.spec, rope_scaling))
    return files.with_rows(vocab_size) if vocab_size else files


def _fetch(path: str, wanted: ModelFormat, file_prefix: str, revision: str, address: str) -> Path:
    if not hub.is_name(path):
        raise BadModel(f"{path}: no such file or directory")
    return hub.fetch(path, wanted, file_prefix, revision, address)


def _open_local(path: Path, wanted: ModelFormat, file_prefix: str) -> ModelFiles:
    if path.is_dir():
        return _open_directory(path, wanted, file_prefix)
    if file_prefix and not path.name.startswith(file_prefix):
        raise BadModel(f"{path.name} does not begin with file_prefix {file_prefix!r}")
    return _open_file(path, wanted)


def _open_file(path: Path, wanted: ModelFormat) -> ModelFiles:
    if is_pickle(path):
        raise pickle_refusal([path.name])
    if path.suffix == ARCHIVE:
        return headrace.open_archive(path)
    if wanted is ModelFormat.HEADRACE:
        raise BadModel(f"{path.name}: format HEADRACE means a {ARCHIVE} file, or a directory with one")
    if path.suffix == ".safetensors" and wanted is not ModelFormat.GGUF:
        return replace(huggingface.open_directory(path.parent, path.name), path=path)
    if wanted is ModelFormat.HF:
        raise BadModel(f"{path.name}: format HF means a directory with config.json, or a .safetensors file in one")
    return gguf.open_file(path)


def _open_directory(path: Path, wanted: ModelFormat, file_prefix: str) -> ModelFiles:
    if wanted is ModelFormat.GGUF:
        return gguf.open_file(path / one_file(_ggufs(path), file_prefix, path.name))
    has_config = has_file(path / huggingface.CONFIG)
    if wanted is ModelFormat.HEADRACE or (wanted is ModelFormat.AUTO and not has_config and any(_archives(path))):
        return headrace.open_directory(path, file_prefix)
    if wanted is ModelFormat.HF or (has_config and not _only_gguf(path, file_prefix)):
        return _open_huggingface(path, file_prefix, has_config)
    if _ggufs(path):
        return gguf.open_file(path / one_file(_ggufs(path), file_prefix, path.name))
    return _open_huggingface(path, file_prefix, has_config)


def _open_huggingface(path: Path, file_prefix: str, has_config: bool) -> ModelFiles:
    if has_config:
        return huggingface.open_directory(path, file_prefix)
    pickles = sorted(file.name for file in path.iterdir() if is_pickle(file))
    if pickles:
        raise pickle_refusal(pickles)
    found = name_some(sorted(file.name for file in path.iterdir()))
    there = f"neither config.json nor a GGUF file is there, but {found}" if found else "the directory is empty"
    raise BadModel(f"{path.name}: no model: {there}")


def _only_gguf(path: Path, file_prefix: str) -> bool:
    """True if GGUF files have the prefix and no safetensors do: then a config beside them is ignored."""
    weights = [file for file in path.glob("*.safetensors") if file.name.startswith(file_prefix)]
    return not weights and any(name.startswith(file_prefix) for name in _ggufs(path))


def _archives(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob(f"*{ARCHIVE}"))


def _ggufs(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.gguf") if not file.is_dir())
