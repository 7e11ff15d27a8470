"""What an engine is, and how it is set up, apart from its models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_engine.engine.config.logits_processors import Process, check_sources

API_VERSION = "1.0"
"""Of the wire contract: a new minor adds, a new major breaks."""

FEATURES = ("text", "chat", "ids", "prefix_cache", "logprobs", "session")
"""Parts of the contract that this build honours."""

STREAM_INTERVAL = 0.016
"""Seconds: a frame of a screen, which shows nothing sooner."""

FILE_LIMIT = 120.0
"""Seconds: then a file system counts as stuck."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of one engine.

    Attributes:
        name: names the engine in handles, statistics and logs.
        model_roots: folders that model paths of callers must lie in, and that relative ones are relative to; empty:
            callers name no paths; None: they are the caller's own, any path of this host.
        state_dir: folder that keeps the installed configs and wanted states over restarts; None keeps nothing.
        backend: name of the runner that cores use: "cpu", "torch", "cuda", or "auto": torch on CUDA devices, else cpu.
        allow_hub: resolve model paths that are no local path as names on a model hub.
        hubs: addresses that callers may name beside the engine's own hub; None: any.
        core_ping_limit: seconds after which a core that makes no progress, not even inside a step, is killed.
        file_limit: seconds that reading what an install needs of a model's files may take.
        stream_interval: seconds after a core's last word in which further tokens wait for those of the next step; the
            first token of a sequence and the end never wait. 0: every step is told.
        step_target: seconds that a step beside running streams may take: a core computes as many ids of prompts in it
            as that allows by what its steps have taken. 0: as many as the model's max_prefill_tokens. None: four times
            what the streams take without prompts, at least 0.025 and at most 0.1.
        logits_processors: those that requests may choose, by name: a .py or .cu file, or, for cores that are threads
            of this process, a Python function.
        build: version and commit of the program, for answers.

    Raises:
        ValueError: handles cannot carry the name, a time is none, or a logits processor cannot be one.
    """

    name: str = "engine"
    model_roots: tuple[Path, ...] | None = None
    state_dir: Path | None = None
    backend: str = "auto"
    allow_hub: bool = True
    hubs: tuple[str, ...] | None = None
    core_ping_limit: float = 30.0
    file_limit: float = FILE_LIMIT
    stream_interval: float = STREAM_INTERVAL
    step_target: float | None = None
    logits_processors: Mapping[str, Path | str | Process] = field(default_factory=dict)
    build: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            allowed = '1 to 64 of letters, digits, ".", "_", "-", the first a letter or digit'
            raise ValueError(f'"{self.name}" is no name that handles can carry; allowed: {allowed}')
        for name in ("stream_interval", "step_target"):
            if (seconds := getattr(self, name)) is not None and not 0 <= seconds < math.inf:
                raise ValueError(f"{name} = {seconds} is no time; allowed: seconds, at least 0")
        check_sources(self.logits_processors)
