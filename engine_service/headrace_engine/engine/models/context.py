"""Services of an engine that its models use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.engine.work.pools import WorkPools

if TYPE_CHECKING:
    from headrace_engine.engine.models.model import Model


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Resources that all models of an engine share.

    Attributes:
        options: as they bind the model's config.
        callers: as they bind callers, also where the operator chose the config.
        changed: called whenever the view of a model changes.
    """

    options: EngineOptions
    callers: EngineOptions
    launcher: CoreLauncher
    pools: WorkPools
    clock: Clock
    changed: Callable[[Model], None]
