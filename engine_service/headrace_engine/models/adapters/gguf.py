"""Adapters in GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace_engine.errors import BadModel
from headrace_engine.models.adapters.adapter import AdapterFiles, Factors
from headrace_engine.models.adapters.modules import Module, factors_of, listed, modules_of
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.gguf_header import GgufHeader, read_header
from headrace_engine.models.spec import DecoderSpec

_FACTOR = re.compile(r"(?P<module>.+)\.weight\.lora_(?P<side>[ab])")
_WITHOUT_EFFECT = frozenset({"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name"})
"""Keys that are read elsewhere here, or only describe the adapter."""


def open_file(path: Path, spec: DecoderSpec, family: Family) -> AdapterFiles:
    """Open the adapter in a GGUF file, for a model of any format.

    Raises:
        BadModel: the file is damaged, the adapter does not fit the model, or it needs what is not supported.
    """
    header = read_header(path)
    alpha = _alpha(header, family)
    modules = modules_of(spec, family.gguf)
    factors: dict[str, Factors] = {}
    for name, (a, b) in _pairs(header, modules, spec).items():
        for part, (first, second) in factors_of(modules[name], a, b, spec, family.gguf).items():
            # Without an alpha, llama.cpp adds the product of the factors as it is.
            factors[part] = Factors(first, second, alpha / a.shape[0] if alpha else 1.0)
    return AdapterFiles(path, factors)


def _alpha(header: GgufHeader, family: Family) -> float:
    """Check what the metadata says, and return the adapter's alpha; 0: there is none."""
    fields = ConfigFields(header.metadata, header.path.name)
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if fields.text(key) != expected:
            raise fields.error(key, f"is not supported; a file with an adapter has {expected!r}")
    if fields.text("general.architecture") not in family.from_metadata:
        known = ", ".join(sorted(family.from_metadata)) or "none, as GGUF has no name for them"
        raise fields.error("general.architecture", f"is not that of the model; its adapters are for {known}")
    for key in header.metadata:
        if key.startswith("adapter.") and key not in _WITHOUT_EFFECT:
            raise fields.error(key, "is not supported")
    return 0.0 if fields.get("adapter.lora.alpha") in (None, 0.0) else fields.number("adapter.lora.alpha")


def _pairs(
    header: GgufHeader, modules: Mapping[str, Module], spec: DecoderSpec
) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """Return both factors of each module of the file."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for tensor in header.tensors.values():
        match = _FACTOR.fullmatch(tensor.name)
        if match is None:
            raise tensor.error("is not a factor of a LoRA adapter (….weight.lora_a, ….weight.lora_b)")
        if match["module"] not in modules:
            text = f"changes {match['module']}, which is no matrix of this model that adapters can change"
            raise tensor.error(f"{text}; these are: {listed(modules, spec)}")
        found.setdefault(match["module"], {})[match["side"]] = tensor
    if not found:
        raise BadModel(f"{header.path.name}: holds no tensors")
    for name, sides in found.items():
        if len(sides) == 1:
            absent = "lora_b" if "a" in sides else "lora_a"
            raise BadModel(f"{header.path.name}: {name} has no {absent}: the file is incomplete")
    return {name: (sides["a"], sides["b"]) for name, sides in found.items()}
