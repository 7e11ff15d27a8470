"""What callers name as models: how often engines are asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from headrace import ModelState
from headrace.errors import HeadraceError, UnavailableError
from headrace_gateway.http.adapters import Adapters, Target
from headrace_gateway.http.failures import Failure
from support.clocks.clock import FakeClock


class Engines:
    """A client of engines with models and adapters. It counts what it is asked."""

    def __init__(self, **adapters: list[str]) -> None:
        self.adapters = adapters
        self.failure: HeadraceError | None = None
        self.asked = 0

    async def list_models(self) -> list[Any]:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return [SimpleNamespace(model_name=name, state=ModelState.RUNNING) for name in self.adapters]

    async def list_adapters(self, model: str) -> list[Any]:
        if model == "silent":
            raise UnavailableError("gone")
        return [SimpleNamespace(name=name) for name in [*self.adapters[model], ""]]


async def test_unknown_names_cost_one_look_a_second() -> None:
    clock, engines = FakeClock(), Engines(smol=["sql"], silent=["lost"])
    adapters: Any = Adapters(engines, clock)  # type: ignore[arg-type]
    assert await adapters.find("sql") == Target("smol", "sql")
    for name in ("smol", "silent", "sql", *map(str, range(50))):
        found = await adapters.find(name)
        assert found == (Target("smol", "sql") if name == "sql" else Target(name))
    assert engines.asked == 1
    engines.adapters["smol"].append("poet")
    assert await adapters.find("poet") == Target("poet")
    clock.advance(1.5)
    assert await adapters.find("poet") == Target("smol", "poet")
    assert engines.asked == 2


async def test_a_model_comes_before_an_adapter_of_its_name() -> None:
    adapters: Any = Adapters(Engines(smol=["other"], other=[]), FakeClock())  # type: ignore[arg-type]
    assert await adapters.find("other") == Target("other")


async def test_an_adapter_of_several_models_is_refused() -> None:
    adapters: Any = Adapters(Engines(a=["x"], b=["x"]), FakeClock())  # type: ignore[arg-type]
    with pytest.raises(Failure, match="an adapter of several models \\(a, b\\)"):
        await adapters.find("x")


async def test_engines_that_do_not_answer_leave_a_name_as_it_is() -> None:
    clock, engines = FakeClock(), Engines(smol=["sql"])
    engines.failure = UnavailableError("gone")
    adapters: Any = Adapters(engines, clock)  # type: ignore[arg-type]
    assert await adapters.find("sql") == Target("sql")
    engines.failure = None
    clock.advance(1.5)
    assert await adapters.find("sql") == Target("smol", "sql")
