"""Leases: what happens to requests while nobody is there."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import Any

import pytest
from headrace_engine.config import Lease
from headrace_engine.engine.config.lease_fields import DEFAULT_LEASE, lease_violations, resolved_lease
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.requests.leases import Leases
from headrace_engine.errors import InvalidArgument, NotFound
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import Pooling, RequestView
from headrace_engine.result_types import FinishReason, GenerateStatus, SequenceView
from support.clocks.clock import settle
from support.engine.rig import Rig


def listed(rig: Rig) -> list[RequestView]:
    """All requests, without being there for any."""
    return rig.engine.list_requests("")[0]


def alone(rig: Rig) -> SequenceView:
    """The one sequence there is, as ListRequests tells it."""
    (view,) = listed(rig)
    return view.sequences[0]


def leases(rig: Rig) -> Leases:
    return rig.engine._registry.leases


async def ended(rig: Rig, lease: Lease | None = None) -> str:
    """A request that ended with one token."""
    accepted = await rig.start(config={"lease": lease})
    key = rig.added().key
    rig.core.step({key: 1}, ended={key: FinishReason.EOS})
    return accepted.handle


class TestRunning:
    async def test_a_request_without_readers_is_stopped_and_later_released(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        rig.pass_time(59.9)
        assert alone(rig).end is None
        rig.pass_time(0.1)
        end = alone(rig).end
        assert end is not None
        assert (end.finish_reason, end.status) == (FinishReason.LEASE_EXPIRED, GenerateStatus.INTERRUPTED)
        assert rig.core.ended == [rig.added().key]
        rig.pass_time(599.9)
        assert listed(rig)
        rig.pass_time(0.1)
        assert not listed(rig)

    async def test_inputs_of_embed_that_wait_for_their_turn_are_kept(self, rig: Rig) -> None:
        await rig.run()
        inputs = [rig.request(pooling=Pooling.LAST) for _ in range(3)]
        call = asyncio.create_task(rig.engine.embed(inputs, normalize=False))
        await settle()
        rig.pass_time(3600)
        assert [view.sequences[0].end for view in listed(rig)] == [None] * 3
        call.cancel()
        await asyncio.wait([call])
        assert listed(rig) == []
        assert len(rig.core.ended) == 3
        rig.pass_time(3600)

    async def test_what_it_brought_until_then_stays_readable(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        rig.core.step({rig.added().key: 9})
        rig.pass_time(60)
        (result,) = await rig.read_all(accepted.handle)
        assert result.elements is not None
        assert result.elements.token_ids == [9]
        assert result.end is not None
        assert result.end.finish_reason is FinishReason.LEASE_EXPIRED

    async def test_a_request_that_waits_for_its_turn_has_a_lease_too(self, rig: Rig) -> None:
        await rig.run(max_batch=1)
        for _ in range(3):
            await rig.start()
        rig.pass_time(60)
        assert all(view.sequences[0].end for view in listed(rig))

    async def test_a_reader_who_reads_nothing_keeps_it(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        async with aclosing(rig.engine.read(accepted.handle, 0, 0, "")) as results:
            reading = asyncio.ensure_future(anext(results))
            await settle()
            rig.pass_time(10_000)
            assert alone(rig).end is None
            assert listed(rig)[0].lease_expires is None
            rig.core.step({rig.added().key: 1})
            await reading
        rig.pass_time(59.9)
        assert alone(rig).end is None
        rig.pass_time(0.1)
        assert alone(rig).end is not None

    async def test_each_look_begins_it_anew(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        for _ in range(5):
            rig.pass_time(59)
            view, _ = await rig.engine.get_request(handle=accepted.handle)
            assert view.lease_expires == rig.clock.now + 60
        assert alone(rig).end is None

    async def test_listing_is_not_being_there(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        began = rig.clock.now
        rig.pass_time(30)
        assert listed(rig)[0].lease_expires == began + 60

    async def test_a_sync_in_progress_keeps_it(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        waiting = asyncio.create_task(rig.engine.sync_request(handle=accepted.handle))
        of_model = asyncio.create_task(rig.engine.sync_request(model_name="smol"))
        await settle()
        rig.pass_time(1000)
        waiting.cancel()
        await settle()
        rig.pass_time(1000)
        assert alone(rig).end is None
        of_model.cancel()
        await settle()
        rig.pass_time(60)
        assert alone(rig).end is not None

    async def test_two_readers_and_the_last_one_counts(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        request = rig.engine._registry.find(accepted.handle, "")
        request.arrive()
        request.arrive()
        request.leave()
        rig.pass_time(100)
        assert listed(rig)[0].attached == 1
        assert alone(rig).end is None
        request.leave()
        rig.pass_time(60)
        assert alone(rig).end is not None


class TestEnded:
    async def test_it_runs_from_the_end(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        rig.pass_time(50)
        key = rig.added().key
        rig.core.step({key: 1}, ended={key: FinishReason.EOS})
        rig.pass_time(599.9)
        assert listed(rig)
        rig.pass_time(0.1)
        assert not listed(rig)

    async def test_it_runs_from_the_last_leaving(self, rig: Rig) -> None:
        await rig.run()
        handle = await ended(rig)
        rig.pass_time(500)
        await rig.read_all(handle)
        rig.pass_time(599.9)
        assert listed(rig)
        rig.pass_time(0.1)
        with pytest.raises(NotFound):
            await rig.read_all(handle)

    async def test_it_may_be_shorter_than_the_rest_of_the_running_lease(self, rig: Rig) -> None:
        await rig.run()
        await rig.start(config={"lease": Lease(running=3000.0, ended=5.0)})
        rig.pass_time(12)
        key = rig.added().key
        rig.core.step({key: 1}, ended={key: FinishReason.EOS})
        rig.pass_time(4.9)
        assert listed(rig)
        rig.pass_time(0.1)
        assert not listed(rig)

    async def test_a_key_is_remembered_after_it(self, rig: Rig) -> None:
        await rig.run()
        await rig.start(request_id="r1", content=b"same")
        rig.pass_time(60)
        rig.pass_time(600)
        assert not listed(rig)
        with pytest.raises(NotFound, match="was released"):
            await rig.start(request_id="r1", content=b"same")

    async def test_a_model_that_is_gone_does_not_matter(self, rig: Rig) -> None:
        await rig.run()
        await ended(rig)
        await rig.engine.stop_model("smol")
        await rig.engine.release_model("smol")
        rig.pass_time(600)
        assert not listed(rig)


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
            patch.setattr(Model, "end", lambda *arguments: None)
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
