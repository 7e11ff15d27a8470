"""Directories that PEFT writes: adapter_config.json, and the factors in adapter_model.safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.adapters.adapter import AdapterFiles, Factors
from headrace_engine.models.adapters.modules import Module, factors_of, listed, modules_of
from headrace_engine.models.adapters.peft_config import CONFIG, PeftConfig, ends_of, read_config
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.layout import FileLayout, name_some
from headrace_engine.models.loaders.opening import has_file
from headrace_engine.models.loaders.safetensors import read_header
from headrace_engine.models.loaders.shards import is_pickle, pickle_refusal
from headrace_engine.models.spec import DecoderSpec

WEIGHTS = "adapter_model.safetensors"
_LONGEST_HEADER = 16 * 2**20
"""Maximum size of the header, in bytes: 10,000 tensors have 2 MB."""

_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_OTHERS: Mapping[str, str] = {
    "lora_embedding_": "adapts an embedding (embed_tokens), which is not supported",
    "lora_magnitude_vector": "belongs to DoRA (use_dora), which is not supported",
    "lora_B.bias": "is a bias (lora_bias), which is not supported",
    ".base_layer.": "belongs to an adapter that was not saved by itself",
}
"""What other tensors of PEFT mean, by a part of their names."""


@dataclass(slots=True)
class _Pair:
    """The two factors of one module of the file."""

    a: StoredTensor | None = None
    b: StoredTensor | None = None


def open_directory(directory: Path, spec: DecoderSpec, layout: FileLayout) -> AdapterFiles:
    """Open the adapter in a directory of PEFT, for a model.

    Args:
        layout: how Hugging Face files of the model's family hold their tensors.

    Raises:
        BadModel: a file is missing or damaged, the adapter does not fit the model, or it needs what is not supported.
    """
    config = read_config(directory)
    modules = modules_of(spec, layout)
    pairs = _pairs(_tensors(directory), modules, spec)
    _check_targets(config, modules, pairs, spec)
    factors: dict[str, Factors] = {}
    for name, pair in pairs.items():
        if pair.a is None or pair.b is None:
            absent = "lora_A" if pair.a is None else "lora_B"
            raise BadModel(f"{WEIGHTS}: module {name} has no {absent}: the file is incomplete")
        found = factors_of(modules[name], pair.a, pair.b, spec, layout)
        config.check_rank(name, pair.a)
        factors |= {each: Factors(a, b, config.scale(name)) for each, (a, b) in found.items()}
    return AdapterFiles(directory, factors)


def _tensors(directory: Path) -> Mapping[str, StoredTensor]:
    if not has_file(directory / WEIGHTS):
        pickles = sorted(file.name for file in directory.iterdir() if is_pickle(file))
        raise pickle_refusal(pickles) if pickles else BadModel(f"{directory.name}: {WEIGHTS} is absent")
    tensors, _, _ = read_header(directory / WEIGHTS, _LONGEST_HEADER)
    if not tensors:
        raise BadModel(f"{WEIGHTS}: holds no tensors")
    return tensors


def _pairs(tensors: Mapping[str, StoredTensor], modules: Mapping[str, Module], spec: DecoderSpec) -> dict[str, _Pair]:
    pairs: dict[str, _Pair] = {}
    for tensor in tensors.values():
        match = _TENSOR.fullmatch(tensor.name)
        if match is None:
            raise tensor.error(_meaning(tensor.name))
        name = _module_name(match["module"], modules)
        if name is None:
            raise tensor.error(f"changes {match['module']}, {_unknown(modules, spec)}")
        pair = pairs.setdefault(name, _Pair())
        if (pair.a if match["side"] == "A" else pair.b) is not None:
            raise tensor.error("stands twice, under two names")
        if match["side"] == "A":
            pair.a = tensor
        else:
            pair.b = tensor
    return pairs


def _meaning(name: str) -> str:
    known = (text for part, text in _OTHERS.items() if part in name)
    text = "is not part of a LoRA adapter (a module in modules_to_save, or another method), and is not supported"
    return next(known, text)


def _module_name(name: str, modules: Mapping[str, Module]) -> str | None:
    """Return the model's name of a module; adapters of a model without its head omit the prefix."""
    return next((each for each in (name, f"model.{name}") if each in modules), None)


def _unknown(modules: Mapping[str, Module], spec: DecoderSpec) -> str:
    return f"which is no module of this model that adapters can change; these are: {listed(modules, spec)}"


def _check_targets(
    config: PeftConfig, modules: Mapping[str, Module], pairs: Mapping[str, _Pair], spec: DecoderSpec
) -> None:
    """Check that the file has what its config lists, where that is a list; nothing is matched against expressions."""
    known = {end for name in modules for end in ends_of(name)}
    if strange := sorted(config.targets - known):
        raise BadModel(f"{CONFIG}: target_modules names {shown(strange[0])}, {_unknown(modules, spec)}")
    if not config.is_exact:
        return
    wanted = set(_wanted(config, modules))
    if absent := [name for name in wanted if name not in pairs]:
        raise BadModel(f"{WEIGHTS}: has no tensors of modules that {CONFIG} lists: {name_some(sorted(absent))}")
    if others := [name for name in pairs if name not in wanted]:
        raise BadModel(f"{WEIGHTS}: changes modules that {CONFIG} does not list: {name_some(sorted(others))}")


def _wanted(config: PeftConfig, modules: Mapping[str, Module]) -> Iterator[str]:
    for name, module in modules.items():
        ends = ends_of(name)
        targeted = bool(ends & config.targets) and not ends & config.excluded
        if targeted and (config.layers is None or module.layer in config.layers):
            yield name
