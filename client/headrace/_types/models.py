"""Models on engines: their states, configs, files and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from headrace._types.requests import ConfigWarning
from headrace.errors import HeadraceError


class ModelState(StrEnum):
    """Life cycle of one model on one engine. Only RUNNING takes requests."""

    INSTALLING = "INSTALLING"
    INITIAL = "INITIAL"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RELEASED = "RELEASED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    """The engine could not be reached; see the failure."""


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """Progress of an install, start, stop or release.

    Attributes:
        phase: "DOWNLOADING", "READING", "CONVERTING", "LOADING", "ALLOCATING", "WARMING_UP", "DRAINING" or "FREEING".
        bytes_done: bytes processed in this phase; 0 in phases that count none.
        bytes_total: total bytes of this phase; None if unknown.
    """

    phase: str
    bytes_done: int
    bytes_total: int | None


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """Effective config of a model: all fields resolved and all sizes computed. Sizes are 0 until the model is started.

    Attributes:
        config: all install fields, by name.
        devices: names of the devices in use.
        architecture: architecture named in the model's files.
        resolved_revision: commit or digest of the files.
        weight_bytes: size of the weights in bytes.
        workspace_bytes: size of the workspace in bytes.
        kv_bytes: size of the KV pool in bytes.
        kv_tokens: capacity of the KV pool in tokens.
        host_kv_bytes: size of the host tier in bytes.
        host_kv_tokens: capacity of the host tier in tokens.
        vocab_size: size of the vocabulary; ids are below it.
        model_max_length: maximum sequence length of the model, in tokens.
        generation_defaults: generation config of a request that sets no field.
        warnings: values that are probably mistakes.
        logits_processors: names of the logits processors that requests may use.
    """

    config: Mapping[str, Any]
    devices: tuple[str, ...]
    architecture: str
    resolved_revision: str
    weight_bytes: int
    workspace_bytes: int
    kv_bytes: int
    kv_tokens: int
    host_kv_bytes: int
    host_kv_tokens: int
    vocab_size: int
    model_max_length: int
    generation_defaults: Mapping[str, Any]
    warnings: tuple[ConfigWarning, ...]
    logits_processors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model on one engine.

    Attributes:
        model_name: name of the model.
        engine: name of the engine.
        state: state in the model's life cycle.
        wanted_state: state that the engine works towards.
        failure: why the model is FAILED, or why the call failed on this engine; None: no failure.
        progress: progress of the operation that is running; None: none is.
        effective: effective config; None in lists and until it is known.
        state_time: time at which the state was entered; None if unknown.
        logits_processors: names of the logits processors that requests may use; empty until the model is started.
    """

    model_name: str
    engine: str
    state: ModelState
    wanted_state: ModelState
    failure: HeadraceError | None
    progress: ModelProgress | None
    effective: EffectiveConfig | None
    state_time: datetime | None
    logits_processors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A LoRA adapter of one model on one engine.

    Attributes:
        model_name: name of the model.
        engine: name of the engine.
        name: name of the adapter, the `lora_name` of requests; "" where the call failed.
        path: its directory on the engine's host, as it was given.
        digest: digest of its content, equal for copies.
        rank: its largest rank.
        sequences: number of sequences that use it now.
        unloaded: name of the adapter that `load_adapter` unloaded to make room; "" = none.
        failure: why the call failed on this engine; None: no failure.
    """

    model_name: str
    engine: str
    name: str
    path: str
    digest: str
    rank: int
    sequences: int
    unloaded: str
    failure: HeadraceError | None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Description of the model files at a path.

    Attributes:
        engine: name of the engine that read the files.
        format: "HF", "GGUF" or "HEADRACE".
        architecture: architecture named in the files.
        config: the model's config.
        generation_config: the model's generation config, as Headrace fields.
        max_length: maximum sequence length of the model, in tokens.
        vocab_size: number of ids.
        num_parameters: number of parameters.
        weight_bytes: size of the weights on disk, in bytes.
        kv_bytes_per_token: bytes of keys and values per token in the model's dtype.
        chat_template: chat template; None: the model has none.
        resolved_revision: commit or digest of the files.
        refusal: why an install would be rejected; None: it would not.
    """

    engine: str
    format: str
    architecture: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    max_length: int
    vocab_size: int
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    chat_template: str | None
    resolved_revision: str
    refusal: HeadraceError | None


@dataclass(frozen=True, slots=True)
class SerializedModel:
    """A model in Headrace's own format.

    Attributes:
        path: path for `install_model`: the folder on the engine's host, or "memory:" and the name.
        file_prefix: the same for `file_prefix`: the base name of the files.
        written: False: the files were there already.
    """

    path: str
    file_prefix: str
    written: bool


@dataclass(frozen=True, slots=True)
class SerializeStep:
    """A step of `serialize_model` on one engine. All but the last one of each engine have its progress.

    Attributes:
        engine: name of the engine.
        progress: how far it is.
        model: what was written, in its last step.
        failure: why it failed there, in its last step; not on all engines, since then the call raises.
    """

    engine: str
    progress: ModelProgress | None
    model: SerializedModel | None
    failure: HeadraceError | None
