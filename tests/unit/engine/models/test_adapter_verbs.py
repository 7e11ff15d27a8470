"""Which adapters a model has: what makes room, what is in use, and what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import Adapter
from headrace_engine.errors import BadModel, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from headrace_engine.ipc.commands import LoadAdapter
from headrace_engine.ipc.messages import AdapterLoaded
from headrace_engine.model_types import AdapterView, ModelState
from support.clocks.clock import settle
from support.clocks.waiting import LIMIT
from support.engine.rig import NAME, Rig
from support.models.tiny_adapters import make_tiny_adapter
from unit.engine.models.restarts import rest


@pytest.fixture
def adapter(rig: Rig, tmp_path: Path) -> Any:
    """Makes adapters of a rank for the rig's model."""

    def make(name: str, rank: int = 2, *, under: Path = tmp_path) -> Adapter:
        path = under / name
        if not path.exists():
            make_tiny_adapter(path, rig.model_path, r=rank, seed=rank)
        return Adapter(name, str(path))

    return make


async def load(rig: Rig, adapter: Adapter, error: str = "") -> AdapterView:
    """Load an adapter of the running model; its core answers."""
    loading, command = await begin(rig, adapter)
    rig.core.say(AdapterLoaded(command.adapter.number, error))
    return await loading


async def begin(rig: Rig, adapter: Adapter) -> tuple[asyncio.Task[AdapterView], LoadAdapter]:
    """Begin to load an adapter, until the running model's core is told to."""
    rig.core.commanded.clear()
    loading = asyncio.create_task(rig.engine.load_adapter(NAME, adapter))
    commanded = asyncio.create_task(rig.core.commanded.wait())
    async with asyncio.timeout(LIMIT):
        await asyncio.wait([loading, commanded], return_when=asyncio.FIRST_COMPLETED)
    commanded.cancel()
    if loading.done():
        await loading
    command = rig.core.commands[-1]
    assert isinstance(command, LoadAdapter)
    return loading, command


def names(rig: Rig) -> list[str]:
    """Names of the loaded adapters."""
    return [each.name for each in rig.engine.list_adapters(NAME)]


async def test_the_least_recently_used_makes_room(rig: Rig, adapter: Any) -> None:
    await rig.run(lora_max_num=2, lora_max_rank=8)
    await load(rig, adapter("a", 2))
    await load(rig, adapter("b", 3))
    used = await rig.start(config={"lora_name": "a"})
    await rig.engine.stop_request(used.handle, "")
    view = await load(rig, adapter("c", 4))
    assert (view.unloaded, view.rank, names(rig)) == ("b", 4, ["a", "c"])
    with pytest.raises(NotFound, match="loaded: a, c"):
        await rig.start(config={"lora_name": "b"})


async def test_an_adapter_in_use_makes_no_room(rig: Rig, adapter: Any) -> None:
    await rig.run(lora_max_num=2, lora_max_rank=8)
    await load(rig, adapter("a", 2))
    await load(rig, adapter("b", 3))
    of_a = await rig.start(config={"lora_name": "a"})
    await load(rig, adapter("c", 4))
    of_c = await rig.start(config={"lora_name": "c"})
    assert names(rig) == ["a", "c"]
    assert [each.sequences for each in rig.engine.list_adapters(NAME)] == [1, 1]
    with pytest.raises(FailedPrecondition, match="all 2 adapters") as full:
        await rig.engine.load_adapter(NAME, adapter("b", 3))
    with pytest.raises(FailedPrecondition, match="in use by 1 sequences") as used:
        await rig.engine.unload_adapter(NAME, "a")
    assert {full.value.reason, used.value.reason} == {"LORA_IN_USE"}
    await rig.engine.stop_request(of_a.handle, "")
    await rig.engine.unload_adapter(NAME, "a")
    await rig.engine.stop_request(of_c.handle, "")
    assert names(rig) == ["c"]


async def test_a_refusal_of_the_core_loads_nothing(rig: Rig, adapter: Any) -> None:
    await rig.run(lora_max_num=1)
    with pytest.raises(BadModel, match="has changed"):
        await load(rig, adapter("a"), "has changed")
    assert names(rig) == []
    await load(rig, adapter("a"))
    assert names(rig) == ["a"]


async def test_a_core_that_ends_meanwhile_loads_nothing(rig: Rig, adapter: Any) -> None:
    core = await rig.run(lora_max_num=1)
    loading, _ = await begin(rig, adapter("a"))
    core.die()
    with pytest.raises(Unavailable) as lost:
        await loading
    assert lost.value.reason == "CORE_RESTARTING"
    with pytest.raises(Unavailable):
        await rig.engine.load_adapter(NAME, adapter("a"))
    await settle()
    assert rig.core.plan.adapters == ()


async def test_a_new_core_gets_what_was_loaded(rig: Rig, adapter: Any) -> None:
    core = await rig.run(lora_max_num=2, lora_max_rank=8)
    view = await load(rig, adapter("a"))
    core.die()
    await settle()
    assert rig.core is not core
    assert [plan.digest for plan in rig.core.plan.adapters] == [view.digest]


async def test_loaded_adapters_are_kept_on_disk(rig: Rig, adapter: Any, tmp_path: Path) -> None:
    """Instead of those of the install, and with the room that the install made."""
    state = tmp_path / "state"
    await rig.new_engine(state_dir=state).start()
    await rig.run(adapters=(adapter("a", 5),))
    await rig.engine.unload_adapter(NAME, "a")
    await load(rig, adapter("b", 3))
    await rig.engine.close()
    await rig.new_engine(state_dir=state).start()
    assert await rest(rig) == {NAME: ModelState.RUNNING}
    assert names(rig) == ["b"]
    assert (rig.core.plan.lora_max_num, rig.core.plan.lora_max_rank) == (1, 5)
    await rig.engine.install_model(rig.config(adapters=(adapter("a", 5),)))
    assert names(rig) == ["b"]


async def test_callers_load_from_model_roots_only(rig: Rig, adapter: Any, tmp_path: Path) -> None:
    """Also where the operator chose the model; what they loaded is bound after a restart, too."""
    inside, state = tmp_path / "inside", tmp_path / "state"
    inside.mkdir()
    options: dict[str, Any] = {"state_dir": state, "model_roots": (inside,)}
    await rig.new_engine(**options).start([rig.config(lora_max_num=2)])
    await rig.run(lora_max_num=2)
    with pytest.raises(InvalidArgument, match="outside"):
        await rig.engine.load_adapter(NAME, adapter("a"))
    await load(rig, adapter("b", 3, under=inside))
    await rig.engine.close()
    (inside / "b").rename(tmp_path / "moved")
    (inside / "b").symlink_to(tmp_path / "moved")
    await rig.new_engine(**options).start([rig.config(lora_max_num=2)])
    assert await rest(rig) == {NAME: ModelState.FAILED}
    failure = rig.engine.get_model(NAME).failure
    assert isinstance(failure, InvalidArgument)
    assert "path" in failure.message
    assert "outside" in failure.message


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_model_that_does_not_run_loads_for_its_start(rig: Rig, adapter: Any, stopped: bool) -> None:
    await rig.install(lora_max_num=1)
    if stopped:
        await rig.engine.start_model(NAME)
        await rig.engine.stop_model(NAME)
    view = await rig.engine.load_adapter(NAME, adapter("a"))
    await rig.engine.start_model(NAME)
    assert [plan.digest for plan in rig.core.plan.adapters] == [view.digest]
