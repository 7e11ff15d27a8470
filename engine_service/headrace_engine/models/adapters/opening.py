"""Open an adapter by its path: choose the loader, check the headers against the model."""

from __future__ import annotations

from pathlib import Path

from headrace_engine.errors import BadModel
from headrace_engine.models.adapters import gguf, peft
from headrace_engine.models.adapters.adapter import AdapterFiles
from headrace_engine.models.families import ARCHITECTURES, GGUF_ARCHITECTURES
from headrace_engine.models.families.family import Family
from headrace_engine.models.spec import DecoderSpec


def open_adapter(path: Path, spec: DecoderSpec) -> AdapterFiles:
    """Open an adapter and check it against a model, as far as its headers allow; no values are read.

    Args:
        path: a directory that PEFT wrote, or a GGUF file.

    Raises:
        BadModel: it is missing or damaged, does not fit the model, or needs what is not supported.
    """
    family = _family(spec)
    if path.is_dir():
        return peft.open_directory(path, spec, family.hf)
    if not path.exists():
        raise BadModel(f"{path}: no such file or directory")
    return gguf.open_file(path, spec, family)


def _family(spec: DecoderSpec) -> Family:
    return ARCHITECTURES.get(spec.architecture) or GGUF_ARCHITECTURES[spec.architecture]
