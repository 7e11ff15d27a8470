"""Models and the engine itself, as plain data: states, views, descriptions.

Times are seconds since the Unix epoch, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.config import ModelFormat, RuntimeConfig
from headrace_engine.errors import HeadraceError
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import ConfigWarning


class ModelState(StrEnum):
    """Life cycle of one model."""

    INSTALLING = "INSTALLING"
    INITIAL = "INITIAL"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RELEASED = "RELEASED"
    FAILED = "FAILED"


class ModelPhase(StrEnum):
    """The work in progress on a model."""

    DOWNLOADING = "DOWNLOADING"
    READING = "READING"
    CONVERTING = "CONVERTING"
    LOADING = "LOADING"
    ALLOCATING = "ALLOCATING"
    WARMING_UP = "WARMING_UP"
    DRAINING = "DRAINING"
    FREEING = "FREEING"


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """Progress of the running verb. bytes_total is None if it is not known."""

    phase: ModelPhase
    bytes_done: int = 0
    bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A runtime config with every choice made and every size computed.

    Attributes:
        logits_processors: names of the logits processors that requests may choose.
        idle_processors: logits processors that the model's backend cannot run: the reason for each, by name.
    """

    config: RuntimeConfig
    devices: tuple[str, ...] = ()
    architecture: str = ""
    resolved_revision: str = ""
    weight_bytes: int = 0
    workspace_bytes: int = 0
    kv_bytes: int = 0
    kv_tokens: int = 0
    host_kv_bytes: int = 0
    host_kv_tokens: int = 0
    vocab_size: int = 0
    model_max_length: int = 0
    generation_defaults: GenerationConfig = field(default_factory=GenerationConfig)
    warnings: tuple[ConfigWarning, ...] = ()
    logits_processors: tuple[str, ...] = ()
    idle_processors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CoreLoss:
    """The core of a running model was lost, and its replacement is not ready yet.

    Attributes:
        epoch: number of the lost core.
        reason: a sentence on how it was lost.
        time: when it was lost, in seconds since the Unix epoch.
    """

    epoch: int
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class SerializedModel:
    """A model in our own format.

    Attributes:
        model_path, file_prefix: those of an install.
        written: False: the files were there already.
    """

    model_path: str
    file_prefix: str
    written: bool


@dataclass(frozen=True, slots=True)
class ModelView:
    """The current state of one model on this engine.

    Attributes:
        logits_processors: names of the logits processors that requests may choose.
        core_epoch: number of cores started under its name.
        core_loss: set while its core is being replaced; its state does not change meanwhile.
    """

    model_name: str
    engine: str
    state: ModelState
    wanted_state: ModelState
    state_time: float
    failure: HeadraceError | None = None
    progress: ModelProgress | None = None
    effective: EffectiveConfig | None = None
    logits_processors: tuple[str, ...] = ()
    core_epoch: int = 0
    core_loss: CoreLoss | None = None

    @property
    def serving(self) -> bool:
        """True if it accepts requests now."""
        return self.state is ModelState.RUNNING and self.core_loss is None


@dataclass(frozen=True, slots=True)
class AdapterView:
    """A LoRA adapter of a model.

    Attributes:
        path: as its caller gave it.
        digest: of its content.
        rank: its largest rank.
        sequences: number of sequences that use it now.
        unloaded: name of the adapter that was unloaded to make room; "": none.
    """

    model_name: str
    engine: str
    name: str
    path: str
    digest: str
    rank: int
    sequences: int = 0
    unloaded: str = ""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Description of the model at a path, without installing it."""

    format: ModelFormat
    architecture: str
    config_json: str
    generation_config: GenerationConfig
    max_length: int
    vocab_size: int
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    resolved_revision: str
    chat_template: str | None = None
    refusal: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Identity and features of the server."""

    name: str
    instance_id: str
    api_version: str
    build: str
    features: tuple[str, ...]
    start_time: float
    devices: tuple[str, ...]
    core_epoch: int
    draining: bool
