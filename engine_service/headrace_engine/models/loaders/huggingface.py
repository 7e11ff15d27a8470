"""Hugging Face directories: config.json, generation_config.json, and safetensors in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families import family_of
from headrace_engine.models.families.family import Family
from headrace_engine.models.files import FLOATS, ModelFiles, StoredTensor, TensorInfo
from headrace_engine.models.layout import bind, name_some, predicting
from headrace_engine.models.loaders.chat_template import read_chat_templates
from headrace_engine.models.loaders.digest import digest_of, same_bytes, snapshot_commit
from headrace_engine.models.loaders.json_files import read_object
from headrace_engine.models.loaders.opening import has_file
from headrace_engine.models.loaders.quantization import replace_quantized
from headrace_engine.models.loaders.quantization.modules import Replaced, is_zero_bias
from headrace_engine.models.loaders.shards import Checkpoint, read_checkpoint
from headrace_engine.models.loaders.token_ids import end_ids, one_id
from headrace_engine.models.spec import DecoderSpec

CONFIG = "config.json"
_GENERATION = "generation_config.json"
_LONGEST_CONFIG = 2**20
"""Maximum size of each config file, in bytes: InspectModel returns its contents in one message."""

_FOLLOWS_FROM_CONFIG = ".rotary_emb.inv_freq"
"""Suffix of a derived buffer that old checkpoints contain."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """The decoder's spec and tensors, once it is known whether its head is stored."""

    spec: DecoderSpec
    tensors: dict[str, TensorInfo]
    warnings: tuple[str, ...] = ()


def open_directory(directory: Path, file_prefix: str = "") -> ModelFiles:
    """Open the model in a Hugging Face directory.

    Raises:
        BadModel: a file is missing, damaged or of an unsupported kind, or config and weights do not match.
    """
    return open_checkpoint(directory, read_checkpoint(directory, file_prefix), FLOATS)


def open_checkpoint(
    directory: Path, checkpoint: Checkpoint, storages: Collection[str], *, rewritten: bool = False
) -> ModelFiles:
    """Open the model whose tensors are known, and whose other files are in a directory or an archive.

    Args:
        storages: allowed storage types of tensors that are not assembled.
        rewritten: true if its config's `quantization_config` describes earlier files than these.

    Raises:
        BadModel: a file is missing, damaged or of an unsupported kind, or config and weights do not match.
    """
    raw = read_object(directory / CONFIG, _LONGEST_CONFIG)
    config = ConfigFields(raw, CONFIG)
    architecture, warnings = read_architecture(config)
    family = family_of(architecture, CONFIG)
    spec = family.from_config[architecture](config)
    if family.note:
        warnings.append(f"{CONFIG}: {architecture} {family.note}")
    tensors = _decoder_tensors(family, checkpoint.tensors)
    stored = Replaced(tensors) if rewritten else replace_quantized(config, tensors)
    bound = _bind(spec, stored, [name for name, _, _ in checkpoint.headers], storages)
    generation = _generation(directory)
    sources = (ConfigFields(generation, _GENERATION), _naming(config, "eos_token_id"))
    template, tool_template = read_chat_templates(directory)
    return ModelFiles(
        format=ModelFormat.HF,
        path=directory,
        spec=bound.spec,
        config_json=json.dumps(raw),
        generation=generation,
        tensors=bound.tensors,
        revision=snapshot_commit(directory) or _digest(checkpoint, raw, (template or "") + (tool_template or "")),
        tokenizer_path=directory,
        warnings=(*warnings, *bound.warnings),
        chat_template=template,
        named_ends={source.source: end_ids(source, spec.vocab_size) for source in sources},
        bos_id=one_id(_naming(config, "bos_token_id"), "bos_token_id", spec.vocab_size),
        tool_template=tool_template,
    )


def _decoder_tensors(family: Family, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors without those of other parts.

    Raises:
        BadModel: another part's copy of a tensor differs from it.
    """
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(family.others)}
    for name, own in family.copies.items():
        copy = found.pop(name, None)
        if copy is not None and not same_bytes(copy, found.setdefault(own, replace(copy, name=own))):
            raise copy.error(f"differs from {own}, which is the same tensor of this model")
    return found


def read_architecture(config: ConfigFields) -> tuple[str, list[str]]:
    """Return the name of a config's architecture, and warnings about code that is not run.

    Raises:
        BadModel: it is not supported.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise config.error("architectures", "must be a list of one name")
    has_code = config.get("auto_map") is not None
    try:
        family_of(names[0], CONFIG)
    except BadModel as error:
        if has_code:
            raise BadModel(f"{error.message}. The code that auto_map brings along is never run") from None
        raise
    warning = f"{CONFIG}: auto_map names code that is not run; the built-in {names[0]} is used"
    return names[0], [warning] if has_code else []


def _naming(config: ConfigFields, name: str) -> ConfigFields:
    """Return the fields that may name an id: the config's, or of models with several parts those of text."""
    return config if config.has(name) else config.table("text_config") or config


def _generation(directory: Path) -> dict[str, Any]:
    file = directory / _GENERATION
    return read_object(file, _LONGEST_CONFIG) if has_file(file) else {}


def _bind(spec: DecoderSpec, replaced: Replaced, files: Sequence[str], storages: Collection[str]) -> _Bound:
    family, stored = family_of(spec.architecture, CONFIG), replaced.tensors
    layout = family.hf
    if family.apart is not None:
        stored = family.apart(spec, stored, CONFIG)
    spec, warnings = _resolve_head(spec, stored, layout.names)
    tensors, rest = bind(spec, stored, layout, CONFIG, files)
    for info in tensors.values():
        if info.stored.assembly is None and info.stored.storage not in storages:
            raise info.stored.error(f"is {info.stored.storage}; supported are {', '.join(FLOATS)}")
    warnings += [*replaced.warnings, *_left_over(rest, stored, spec, (*family.derived, _FOLLOWS_FROM_CONFIG))]
    return _Bound(spec, tensors, tuple(warnings))


def _left_over(
    rest: Sequence[StoredTensor], stored: Mapping[str, StoredTensor], spec: DecoderSpec, follows: tuple[str, ...]
) -> list[str]:
    """Return warnings about unused tensors.

    Args:
        follows: ends of the names of those that follow from the config.

    Raises:
        BadModel: one of them is not known to be of no effect.
    """
    derived = [tensor for tensor in rest if tensor.name.endswith(follows)]
    zeros = [tensor for tensor in rest if is_zero_bias(tensor, stored)]
    further = predicting(rest, spec.num_layers)
    harmless = {tensor.name for tensor in (*derived, *zeros, *further)}
    unexpected = [tensor for tensor in rest if tensor.name not in harmless]
    if unexpected:
        text = f"tensors that {spec.architecture} of {CONFIG} does not have"
        names_text = name_some(tensor.name for tensor in unexpected)
        raise BadModel(f"{unexpected[0].file.name}: {text}: {names_text}")
    texts = (("follow from the config", derived), ("are zero", zeros), ("predict further ids", further))
    return [f"not used, since they {why}: {name_some(each.name for each in found)}" for why, found in texts if found]


def _resolve_head(
    spec: DecoderSpec, stored: dict[str, StoredTensor], names: Mapping[str, str]
) -> tuple[DecoderSpec, list[str]]:
    """Resolve a head that is tied by the config but stored too: equal to the embedding, it is dropped; else used."""
    embed, head = stored.get(names["embed"]), stored.get(names["head"])
    if not spec.tied_head or head is None:
        return spec, []
    if embed is not None and not same_bytes(embed, head):
        text = f"{CONFIG} says tie_word_embeddings, but {head.name} differs from {embed.name}: the stored head is used"
        return replace(spec, tied_head=False), [text]
    if embed is None:
        stored[names["embed"]] = replace(head, name=names["embed"])
    del stored[names["head"]]
    return spec, []


def _digest(checkpoint: Checkpoint, config: Mapping[str, Any], template: str) -> str:
    described = json.dumps(config, sort_keys=True).encode()
    texts = [(CONFIG, len(described), described), ("chat template", 0, template.encode())]
    return digest_of([*texts, *checkpoint.headers])
