"""Settings and constants of an engine, apart from its models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_engine import __version__
from headrace_engine.engine.config.logits_processors import Process, check_sources

API_VERSION = "1.0"
"""Version of the wire contract: minor versions add, major versions break compatibility."""

FEATURES = (
    "text",
    "chat",
    "ids",
    "prefix_cache",
    "logprobs",
    "session",
    "embed",
    "cache_events",
    "usage",
    "validate_only",
)
"""Parts of the contract that this build honours."""

STREAM_INTERVAL = 0.016
"""Seconds between two messages of tokens: one frame of a 60 Hz screen."""

FILE_LIMIT = 120.0
"""Seconds after which a file system counts as stuck."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of one engine.

    Attributes:
        name: names the engine in handles, statistics and logs.
        model_roots: folders that callers' model paths must lie in, and that relative paths are resolved against; empty:
            callers may name no paths; None: any path of this host.
        write_roots: folders that callers may have models written into, as model_roots; None: any folder of this host.
        memory_dir: folder of the models in memory, "memory:NAME" as model paths; None: there are none.
        state_dir: folder that keeps the installed configs and wanted states across restarts; None: nothing is kept.
        backend: backend of the cores: "cpu", "torch", "cuda", or "auto": torch on CUDA devices, else cpu.
        allow_hub: resolve model paths that do not exist locally as names on a model hub.
        hubs: addresses that callers may name in addition to the engine's own hub; None: any.
        core_ping_limit: seconds after which a core that makes no progress, not even inside a step, is killed.
        hand_over_failed: requests of a model whose core cannot be replaced end with ENGINE_LOST, upon which clients
            continue them at another engine; False: with ERROR.
        file_limit: seconds that an install may spend reading a model's files.
        stream_interval: minimum seconds between two messages of tokens from a core; faster steps are coalesced. The
            first token of a sequence and its end are never delayed. 0: send every step.
        step_target: target seconds of a step while sequences stream: a core fits prompt tokens into the step according
            to the measured durations of its steps. 0: always max_prefill_tokens. None: four times the duration of a
            step without prompt tokens, at least 0.025 and at most 0.1.
        logits_processors: processors that requests may choose, by name: a .py or .cu file, or, for cores that are
            threads of this process, a Python function.
        build: version and commit of the program, reported by GetServerInfo.

    Raises:
        ValueError: the name, a number of seconds or a logits processor is not valid.
    """

    name: str = "engine"
    model_roots: tuple[Path, ...] | None = None
    write_roots: tuple[Path, ...] | None = None
    memory_dir: Path | None = None
    state_dir: Path | None = None
    backend: str = "auto"
    allow_hub: bool = True
    hubs: tuple[str, ...] | None = None
    core_ping_limit: float = 30.0
    hand_over_failed: bool = False
    file_limit: float = FILE_LIMIT
    stream_interval: float = STREAM_INTERVAL
    step_target: float | None = None
    logits_processors: Mapping[str, Path | str | Process] = field(default_factory=dict)
    build: str = f"headrace-engine {__version__}"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            allowed = '1 to 64 of letters, digits, ".", "_", "-", the first a letter or digit'
            raise ValueError(f'"{self.name}" is not a valid engine name; allowed: {allowed}')
        for name in ("stream_interval", "step_target"):
            if (seconds := getattr(self, name)) is not None and not 0 <= seconds < math.inf:
                raise ValueError(f"{name} = {seconds} must be a non-negative number of seconds")
        check_sources(self.logits_processors)
