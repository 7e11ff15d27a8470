"""The LoRA adapters that a model has loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace_engine.config import Adapter, RuntimeConfig
from headrace_engine.engine.config.model_paths import locate
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.errors import AlreadyExists, BadModel, FailedPrecondition, InvalidArgument, NotFound, quoted
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
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


@dataclass(frozen=True, slots=True)
class KeptAdapters:
    """The adapters of a model that are kept over a restart, once calls have changed them.

    Attributes:
        loaded: instead of those of its config.
        rank: largest rank of each.
    """

    loaded: tuple[Adapter, ...]
    rank: int


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
    """The adapters of one model, by name, the least recently used one first.

    Args:
        model_name: for messages.
        loaded: those of the install.
        most: how many may be loaded at once.
        rank: largest rank of each, also as an attribute.
    """

    def __init__(self, model_name: str, loaded: Iterable[LoadedAdapter] = (), most: int = 0, rank: int = 0) -> None:
        self._model_name = model_name
        self._loaded = {each.name: each for each in loaded}
        self._most = most
        self.rank = rank

    def __iter__(self) -> Iterator[LoadedAdapter]:
        return iter([self._loaded[name] for name in self.names])

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

    def use(self, name: str) -> LoadedAdapter:
        """Return an adapter that a request uses from now on.

        Raises:
            NotFound: UNKNOWN_LORA.
        """
        found = self.find(name)
        self._loaded[name] = self._loaded.pop(name)
        return found

    def known(self, adapter: LoadedAdapter) -> bool:
        """Return True if an adapter is loaded under its name already.

        Raises:
            AlreadyExists: LORA_EXISTS; the name has other content.
        """
        found = self._loaded.get(adapter.name)
        if found is not None and found.digest != adapter.digest:
            text = f"adapter {quoted(adapter.name)} is loaded with other content: unload it first (UnloadAdapter)"
            raise AlreadyExists(text, reason="LORA_EXISTS", metadata={"model_name": self._model_name})
        return found is not None

    def check_capacity(self) -> None:
        """Refuse every adapter if the model has no room for any.

        Raises:
            InvalidArgument: naming the field of its install.
        """
        if not self._most:
            text = f"= {quoted(self._model_name)} has no room for adapters: install it with lora_max_num"
            raise InvalidArgument.field("model_name", text)

    def free_number(self, used: Callable[[LoadedAdapter], bool]) -> tuple[int, str]:
        """Return a free number, and the name of the adapter that was dropped for it, or "".

        Args:
            used: True if a request uses an adapter.

        Raises:
            FailedPrecondition: LORA_IN_USE.
        """
        taken = {each.plan.number for each in self._loaded.values()}
        free = [number for number in range(1, self._most + 1) if number not in taken]
        if free:
            return free[0], ""
        oldest = next((each for each in self._loaded.values() if not used(each)), None)
        if oldest is None:
            text = f"all {self._most} adapters (lora_max_num) of model {quoted(self._model_name)} are in use"
            raise in_use(f"{text}: wait until the requests of one have ended", self._model_name)
        del self._loaded[oldest.name]
        return oldest.plan.number, oldest.name

    def add(self, adapter: LoadedAdapter) -> None:
        """Let requests use an adapter."""
        self._loaded[adapter.name] = adapter

    def kept(self, config: RuntimeConfig) -> KeptAdapters | None:
        """Return what is kept over a restart; None if they are those of the config."""
        loaded = tuple(Adapter(each.name, each.path) for each in self)
        return None if {*loaded} == {*config.adapters} else KeptAdapters(loaded, self.rank)

    def planned(self, plan: CorePlan) -> CorePlan:
        """Return the plan of a core that loads these adapters."""
        plans = tuple(each.plan for each in self._loaded.values())
        return replace(plan, adapters=plans, lora_max_num=self._most, lora_max_rank=self.rank)

    def drop(self, numbers: Collection[int]) -> list[str]:
        """Forget the adapters with these numbers; return their names."""
        names = [each.name for each in self._loaded.values() if each.plan.number in numbers]
        for name in names:
            del self._loaded[name]
        return names


def in_use(text: str, model_name: str) -> FailedPrecondition:
    """Return the error for an adapter that requests use."""
    return FailedPrecondition(text, reason="LORA_IN_USE", metadata={"model_name": model_name})
