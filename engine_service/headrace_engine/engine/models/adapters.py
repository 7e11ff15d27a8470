"""The LoRA adapters that a model has loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace_engine.commands import AdapterPlan, CorePlan
from headrace_engine.config import Adapter
from headrace_engine.engine.config.model_paths import locate
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.errors import BadModel, InvalidArgument, NotFound, quoted
from headrace_engine.models.adapters.adapter import content_digest
from headrace_engine.models.adapters.opening import open_adapter
from headrace_engine.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter that requests may name.

    Attributes:
        path: as its caller gave it.
        plan: how cores load it.
    """

    name: str
    path: str
    plan: AdapterPlan

    @property
    def digest(self) -> str:
        """Digest of its content."""
        return self.plan.digest


def read_adapter(
    adapter: Adapter, number: int, spec: DecoderSpec, options: EngineOptions, prefix: str
) -> LoadedAdapter:
    """Read an adapter's files and check them against a model. Blocking.

    Args:
        prefix: path of its fields in the request.

    Raises:
        BadModel: its files are missing or damaged, or do not fit the model; names the adapter.
        InvalidArgument: its path leads outside the engine's model roots.
    """
    try:
        location = locate(adapter.path, options, f"{prefix}path")
        if location.is_hub_name:
            raise BadModel(f"{adapter.path}: no such directory; adapters are not fetched from hubs")
        files = open_adapter(Path(location.path).expanduser().absolute(), spec)
        plan = AdapterPlan(number, str(files.path), content_digest(files), files.rank)
    except (BadModel, OSError) as error:
        text = error.message if isinstance(error, BadModel) else f"{error.strerror or error}: {adapter.path}"
        raise BadModel(f"adapter {quoted(adapter.name)}: {text}") from error
    return LoadedAdapter(adapter.name, adapter.path, plan)


def check_rank(adapter: LoadedAdapter, most: int, prefix: str) -> None:
    """Refuse an adapter of a rank above the limit.

    Raises:
        InvalidArgument: naming both.
    """
    if adapter.plan.rank > most:
        text = f"= {adapter.path!r} has rank {adapter.plan.rank}, more than lora_max_rank {most} of the model"
        raise InvalidArgument.field(f"{prefix}path", text)


class Adapters:
    """The adapters of one model, by name.

    Args:
        model_name: for messages.
        loaded: those of the install.
        most: how many may be loaded at once.
        rank: largest rank of each.
    """

    def __init__(self, model_name: str, loaded: Iterable[LoadedAdapter] = (), most: int = 0, rank: int = 0) -> None:
        self._model_name = model_name
        self._loaded = {each.name: each for each in loaded}
        self._most = most
        self._rank = rank

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all, sorted."""
        return tuple(sorted(self._loaded))

    def find(self, name: str) -> LoadedAdapter:
        """Return an adapter.

        Raises:
            NotFound: UNKNOWN_LORA; lists those that are loaded.
        """
        found = self._loaded.get(name)
        if found is None:
            known = ", ".join(self.names) or "none"
            text = f"model {quoted(self._model_name)} has no adapter {quoted(name)}; loaded: {known}"
            raise NotFound(text, reason="UNKNOWN_LORA", metadata={"model_name": self._model_name})
        return found

    def planned(self, plan: CorePlan) -> CorePlan:
        """Return the plan of a core that loads these adapters."""
        plans = tuple(each.plan for each in self._loaded.values())
        return replace(plan, adapters=plans, lora_max_num=self._most, lora_max_rank=self._rank)

    def drop(self, numbers: Collection[int]) -> list[str]:
        """Forget the adapters with these numbers; return their names."""
        names = [each.name for each in self._loaded.values() if each.plan.number in numbers]
        for name in names:
            del self._loaded[name]
        return names
