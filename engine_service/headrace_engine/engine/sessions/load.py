"""Load of the models, for gateways that place requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.statistics_view import kv_tokens
from headrace_engine.engine.sessions.session_update import ModelLoad
from headrace_engine.model_types import ModelState


def model_load(model: Model, *, draining: bool) -> ModelLoad:
    """Return the load of a model; all figures are 0 unless it is RUNNING or STOPPING."""
    base = ModelLoad(model.name, model.state, draining=draining, core_epoch=model.core.epoch)
    if model.state not in (ModelState.RUNNING, ModelState.STOPPING):
        return base
    outputs = model.outputs
    free, total = kv_tokens(model)
    return ModelLoad(
        model_name=base.model_name,
        state=base.state,
        running=outputs.live - outputs.waiting,
        waiting=outputs.waiting,
        tokens_free=free,
        tokens_total=total,
        tokens_to_prefill=outputs.tokens_to_prefill,
        generated_tps=outputs.history.generated_tps,
        draining=base.draining,
        core_epoch=base.core_epoch,
    )


def model_loads(models: Iterable[Model], *, draining: bool) -> list[ModelLoad]:
    """Return the load of all models."""
    return [model_load(model, draining=draining) for model in models]


class LoadWatch:
    """Changes of the load of all models; of each model only the newest is kept until it is taken.

    Args:
        read: returns the current loads.
    """

    def __init__(self, read: Callable[[], Iterable[ModelLoad]]) -> None:
        self._read = read
        self._known: dict[str, ModelLoad] = {}
        self._pending: OrderedDict[str, ModelLoad] = OrderedDict()

    @property
    def pending(self) -> bool:
        """True if there is a change to take."""
        return bool(self._pending)

    def poll(self) -> bool:
        """Compare with the last poll and return `pending`. A model that is gone is RELEASED."""
        loads = {load.model_name: load for load in self._read()}
        gone = self._known.keys() - loads.keys()
        changed = {name: load for name, load in loads.items() if self._known.get(name) != load}
        self._pending |= changed | {name: ModelLoad(name, ModelState.RELEASED) for name in gone}
        self._known = loads
        return self.pending

    def take(self) -> ModelLoad:
        """Remove and return the oldest change. There must be one."""
        return self._pending.popitem(last=False)[1]
