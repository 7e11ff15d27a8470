"""Download models from a hub into its local cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace_proto.pure.faults import is_fault

from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.layout import name_some
from headrace_engine.models.loaders.choice import one_file
from headrace_engine.models.loaders.shards import is_pickle, pickle_refusal

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = (".json", ".jinja", ".model", ".txt")
_TIMEOUT = 20.0
"""Seconds to wait for the first response of a hub."""


def is_name(path: str) -> bool:
    """True if the text looks like a hub name: "owner/model"."""
    return _NAME.fullmatch(path) is not None


def fetch(name: str, wanted: ModelFormat, file_prefix: str, revision: str, address: str) -> Path:
    """Download the needed files of a model, or find them in the cache; return the directory, or the GGUF file.

    Args:
        address: URL of the hub; "" means the default of huggingface_hub.

    Raises:
        BadModel: the hub cannot be reached and nothing is cached, or it has no such model.
        InvalidArgument: the address is not a URL.
    """
    if address and not address.startswith(("http://", "https://")):
        text = f"= {address!r} is not supported; give the URL of a hub"
        raise InvalidArgument.unsupported("config.hub", text)
    try:
        import huggingface_hub
    except ImportError:
        text = "no such file or directory, and huggingface_hub is not installed to ask a hub"
        raise BadModel(f"{name}: {text}") from None
    try:
        return _download(huggingface_hub, name, wanted, file_prefix, revision, address or None)
    except BadModel:
        raise
    except BaseException as error:  # of several HTTP libraries, and panics of native ones
        if not is_fault(error):
            raise
        return _cached(huggingface_hub, name, revision, error)


def _download(
    client: Any, name: str, wanted: ModelFormat, file_prefix: str, revision: str, address: str | None
) -> Path:
    info = client.HfApi(endpoint=address).model_info(name, revision=revision or None, timeout=_TIMEOUT)
    files = [item.rfilename for item in info.siblings if "/" not in item.rfilename]
    weights = _weights(name, files, wanted, file_prefix)
    small = [file for file in files if file.endswith(_SMALL_FILES)]
    client.utils.disable_progress_bars()
    directory = client.snapshot_download(
        name, revision=info.sha, endpoint=address, allow_patterns=[*weights, *small], max_workers=4
    )
    is_gguf = weights[0].endswith(".gguf")
    return Path(directory) / weights[0] if is_gguf else Path(directory)


def _weights(name: str, files: Sequence[str], wanted: ModelFormat, file_prefix: str) -> list[str]:
    """Return the files that hold the weights: all safetensors of one model, or one GGUF file."""
    begun = [file for file in files if file.startswith(file_prefix)]
    tensors = [file for file in begun if file.endswith(".safetensors")]
    usual = [file for file in tensors if file.startswith("model")]
    if tensors and wanted is not ModelFormat.GGUF:
        return usual or tensors
    ggufs = [file for file in begun if file.endswith(".gguf")]
    if ggufs and wanted is not ModelFormat.HF:
        return [one_file(ggufs, file_prefix, name)]
    pickles = [file for file in files if is_pickle(Path(file))]
    if pickles:
        raise pickle_refusal(pickles)
    raise BadModel(f"{name}: the hub has neither safetensors nor a GGUF file of it, but {name_some(files)}")


def _cached(client: Any, name: str, revision: str, error: BaseException) -> Path:
    """Return the cached files of the model, for a host without access to the hub."""
    try:
        return Path(client.snapshot_download(name, revision=revision or None, local_files_only=True))
    except BaseException as other:
        if not is_fault(other):
            raise
        text = f"no such file or directory, and the hub does not give it: {_summary(error)}"
        advice = "Check name, revision and network (HF_TOKEN for gated models), or give a local directory"
        raise BadModel(f"{name}: {text}. {advice}") from error


def _summary(error: BaseException) -> str:
    """Return the first lines of an error that may have many."""
    lines = [line.strip(" .") for line in str(error).splitlines() if line.strip(" .")]
    return ". ".join(lines[:2]) or type(error).__name__
