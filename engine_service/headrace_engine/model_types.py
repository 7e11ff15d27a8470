"""What the engine tells of its models and of itself, as plain data: states, views, statistics.

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
    """What is being done with a model just now."""

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
    """How far the verb in progress has come. bytes_total is None where it is not known."""

    phase: ModelPhase
    bytes_done: int = 0
    bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """What a runtime config became: every choice made and every size computed.

    Attributes:
        logits_processors: names of those that requests may choose.
        idle_processors: those that the model's backend cannot run, by name, each with why.
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
    """The core of a model that runs was lost, and the next one is not at work yet.

    Attributes:
        epoch: number of the core that was lost.
        reason: how it was lost, in words.
        time: when, in seconds since the Unix epoch.
    """

    epoch: int
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model on this engine as it stands.

    Attributes:
        logits_processors: names of those that requests may choose.
        core_epoch: cores that were started under its name.
        core_loss: set while its core is being replaced; its state is what it was.
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
        """It takes requests now."""
        return self.state is ModelState.RUNNING and self.core_loss is None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What lies at a path, without installing it."""

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
    """Who answers, and what it can do."""

    name: str
    instance_id: str
    api_version: str
    build: str
    features: tuple[str, ...]
    start_time: float
    devices: tuple[str, ...]
    core_epoch: int
    draining: bool
