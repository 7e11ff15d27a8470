"""Measurements of a model, for the engine's metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.statistics_view import engine_stat
from headrace_engine.engine.results.observations import Observations
from headrace_engine.stat_types import EngineStat


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's statistics, counts and what of its config explains them.

    Attributes:
        stat: its state now.
        observed: its counts since the engine's start.
        block_size: tokens in a block of the KV pool.
        max_length: largest length of a sequence.
        max_adapters: adapters that may be loaded at once.
        running_adapters, waiting_adapters: names of those that live sequences use, sorted.
    """

    stat: EngineStat
    observed: Observations
    block_size: int
    max_length: int
    max_adapters: int
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]


def measured(model: Model, engine: str, instance_id: str, now: float) -> Measured:
    """Return what is measured of a model."""
    config, outputs = model.effective.config, model.outputs
    names = {each.plan.number: each.name for each in model.adapters}
    waiting = {command.adapter for command in outputs.commands_waiting()}
    running = {outputs.command(each).adapter for each in outputs.all() if each.times.scheduled is not None}
    return Measured(
        stat=engine_stat(model, engine, instance_id, now),
        observed=outputs.history.observed,
        block_size=config.block_size or 0,
        max_length=config.max_length or 0,
        max_adapters=config.lora_max_num or 0,
        running_adapters=_named(running, names),
        waiting_adapters=_named(waiting, names),
    )


def _named(numbers: Iterable[int], names: dict[int, str]) -> tuple[str, ...]:
    return tuple(sorted(names[number] for number in numbers if number in names))
