"""Leases: their timers, and what a config may ask of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace_engine.config import Lease
from headrace_engine.engine.config.lease_fields import DEFAULT_LEASE, lease_violations, resolved_lease
from headrace_engine.engine.cores.model_core import ModelCore
from headrace_engine.engine.requests.leases import Leases
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from support.engine.lease_rig import alone, ended
from support.engine.rig import Rig


def leases(rig: Rig) -> Leases:
    return rig.engine._registry.leases


class TestTimers:
    async def test_coming_and_going_costs_nothing(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        for _ in range(1000):
            rig.pass_time(0.5)
            await rig.engine.get_request(handle=accepted.handle)
        assert len(leases(rig)._timers._heap) == len(leases(rig)._timers) == 1

    async def test_a_released_request_is_let_go(self, rig: Rig) -> None:
        await rig.run()
        handle = await ended(rig, Lease(ended=0.0))
        request = rig.engine._registry.find(handle, "")
        request.arrive()
        await rig.engine.release_request(handle, "")
        request.leave()
        assert not len(leases(rig)._timers)
        rig.pass_time(3600)
        assert not leases(rig)._timers._heap

    async def test_a_look_that_changes_nothing_does_not_go_on_for_ever(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await rig.run()
        await rig.start()
        with monkeypatch.context() as patch:
            patch.setattr(ModelCore, "end", lambda *arguments: None)
            rig.pass_time(60)
        assert alone(rig).end is None

    async def test_after_the_engine_s_end_nothing_is_looked_at(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        await rig.engine.close()
        assert leases(rig)._timers._timer is None
        rig.pass_time(60)
        assert leases(rig)._timers._timer is None


class TestConfig:
    async def test_the_effective_config_shows_both_parts(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        assert accepted.effective_config is not None
        assert accepted.effective_config.lease == DEFAULT_LEASE
        assert rig.engine.get_model("smol").effective is not None

    async def test_for_ever_is_the_server_s_longest(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start(config={"lease": Lease(running=0.0)})
        assert accepted.effective_config is not None
        assert accepted.effective_config.lease == Lease(running=3600.0, ended=600.0)
        rig.pass_time(3599)
        assert alone(rig).end is None
        rig.pass_time(1)
        assert alone(rig).end is not None

    async def test_a_model_has_its_own_lease(self, rig: Rig) -> None:
        await rig.run(default_lease=Lease(running=5.0), max_lease=100.0)
        effective = rig.engine.get_model("smol").effective
        assert effective is not None
        assert effective.config.default_lease == Lease(running=5.0, ended=100.0)
        assert effective.generation_defaults.lease == effective.config.default_lease
        accepted = await rig.start(config={"lease": Lease(ended=7.0)})
        assert accepted.effective_config is not None
        assert accepted.effective_config.lease == Lease(running=5.0, ended=7.0)

    @pytest.mark.parametrize(
        ("lease", "field"),
        [
            (Lease(running=3600.5), "config.lease.running"),
            (Lease(ended=-1.0), "config.lease.ended"),
            (Lease(running=math.nan), "config.lease.running"),
            (Lease(ended=math.inf), "config.lease.ended"),
        ],
    )
    async def test_what_is_out_of_range_is_refused_by_name(self, rig: Rig, lease: Lease, field: str) -> None:
        await rig.run()
        with pytest.raises(InvalidArgument, match="0 to 3600 s") as caught:
            await rig.start(config={"lease": lease})
        assert [violation.field for violation in caught.value.violations] == [field]

    @pytest.mark.parametrize(
        ("config", "field"),
        [
            ({"default_lease": Lease(running=101.0), "max_lease": 100.0}, "config.default_lease.running"),
            ({"default_lease": Lease(ended=4000.0)}, "config.default_lease.ended"),
            ({"max_lease": 0.0}, "config.max_lease"),
        ],
    )
    async def test_of_the_runtime_config_too(self, rig: Rig, config: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await rig.install(**config)
        assert [violation.field for violation in caught.value.violations] == [field]

    def test_parts_that_nobody_set_are_lowered_to_the_longest(self) -> None:
        assert resolved_lease(None, None, 50.0) == Lease(50.0, 50.0)
        assert resolved_lease(Lease(running=10.0), Lease(20.0, 30.0), 50.0) == Lease(10.0, 30.0)

    def test_a_lease_of_the_longest_is_in_range(self) -> None:
        assert not lease_violations(Lease(100.0, 0.0), 100.0, "lease")
        assert not lease_violations(GenerationConfig().lease, 100.0, "lease")
