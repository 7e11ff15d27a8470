"""adapter_config.json: the ranks and scales of an adapter of PEFT, and what it needs beyond plain LoRA."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.json_files import read_object
from headrace_engine.models.loaders.opening import has_file

CONFIG = "adapter_config.json"
_LONGEST = 2**20
"""Maximum size of the file, in bytes."""

_USED = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules")
_WITHOUT_EFFECT = (
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "lora_dropout", "layers_to_transform", "layers_pattern", "init_lora_weights", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size", "runtime_config"),
    *("bias", "ensure_weight_tying"),
)
"""Fields that are read elsewhere here, or say only how the adapter was trained or stored."""

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of init_lora_weights that leave an adapter to a changed model; PEFT converts it when it is saved."""

_PLAIN = re.compile(r"[A-Za-z0-9_.\-]+")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The config of an adapter.

    Attributes:
        rank, alpha: of modules that no pattern names.
        root: the scale is alpha / √rank, not alpha / rank.
        targets, excluded: names, or ends of names, of modules; empty where the config has an expression instead.
        layers: indices of the layers that it changes; None: all.
        is_exact: targets, exclusions and layers together name exactly the modules that it changes.
    """

    rank: int
    alpha: float
    root: bool
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]
    targets: frozenset[str]
    excluded: frozenset[str]
    layers: frozenset[int] | None
    is_exact: bool

    def scale(self, module: str) -> float:
        """Return the factor of what the adapter adds to a module's product."""
        rank = _first_match(self.ranks, module, self.rank)
        alpha = _first_match(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.root else rank)

    def check_rank(self, module: str, a: StoredTensor) -> None:
        """Refuse a tensor whose rank is not that of the config.

        Raises:
            BadModel: names both.
        """
        rank = int(_first_match(self.ranks, module, self.rank))
        if a.shape[0] != rank:
            raise a.error(f"has rank {a.shape[0]}, but {CONFIG} gives it rank {rank}")


def read_config(directory: Path) -> PeftConfig:
    """Read the config of the adapter in a directory.

    Raises:
        BadModel: it is absent or damaged, or needs something that is not supported; names the field.
    """
    if not has_file(directory / CONFIG):
        raise BadModel(f"{directory.name}: {CONFIG} is absent: no adapter of PEFT")
    values = read_object(directory / CONFIG, _LONGEST)
    fields = ConfigFields(values, CONFIG)
    _check_supported(fields, values)
    targets, excluded = _names(fields, "target_modules"), _names(fields, "exclude_modules")
    return PeftConfig(
        rank=fields.integer("r"),
        alpha=fields.number("lora_alpha"),
        root=fields.flag("use_rslora", False),
        ranks=_patterns(fields, "rank_pattern"),
        alphas=_patterns(fields, "alpha_pattern"),
        targets=targets or frozenset(),
        excluded=excluded or frozenset(),
        layers=_layers(fields),
        is_exact=bool(targets) and excluded is not None,
    )


def _check_supported(fields: ConfigFields, values: Mapping[str, Any]) -> None:
    if fields.get("peft_type") != "LORA":
        raise fields.error("peft_type", "is not supported; supported is LORA")
    if fields.get("bias") not in (None, "none"):
        raise fields.error("bias", "is not supported; supported is none")
    start = fields.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        text = "means that the model's own weights were changed, which is not supported; save it as plain LoRA"
        raise fields.error("init_lora_weights", f"{text} (path_initial_model_for_weight_conversion)")
    for name, value in values.items():
        neutral = value in (None, False, "", 0) or value in ([], {})
        if name not in (*_USED, *_WITHOUT_EFFECT) and not neutral:
            raise fields.error(name, "is not supported")


def _names(fields: ConfigFields, name: str) -> frozenset[str] | None:
    """Return a list of names; None for an expression, which is not evaluated."""
    value = fields.get(name)
    if value is None:
        return frozenset()
    if isinstance(value, str):
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise fields.error(name, "must be a list of names, or a string")
    return frozenset(value)


def _patterns(fields: ConfigFields, name: str) -> dict[str, float]:
    table = fields.get(name) or {}
    if not isinstance(table, dict):
        raise fields.error(name, "must be an object")
    found = ConfigFields(table, CONFIG)
    for key in table:
        if not _PLAIN.fullmatch(key):
            raise BadModel(f"{CONFIG}: {name} has the expression {shown(key)}; only names of modules are supported")
    read = found.integer if name == "rank_pattern" else found.number
    return {key: read(key) for key in table}


def _layers(fields: ConfigFields) -> frozenset[int] | None:
    value = fields.get("layers_to_transform")
    indices = [value] if isinstance(value, int) else value
    if not indices:
        return None if indices is None else frozenset()
    if not isinstance(indices, list) or not all(type(each) is int for each in indices):
        raise fields.error("layers_to_transform", "must be an integer or a list of integers")
    return frozenset(indices)


def _first_match(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first pattern that is a module's name, or the end of it."""
    named = ends_of(module) & patterns.keys()
    if len(named) > 1:
        return next(value for name, value in patterns.items() if name in named)
    return patterns[named.pop()] if named else default


def ends_of(module: str) -> set[str]:
    """Return the names that PEFT takes for a module's: its own, and every end of it after a dot."""
    parts = module.split(".")
    return {".".join(parts[first:]) for first in range(len(parts))}
