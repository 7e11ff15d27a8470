"""Leases: what happens to requests while nobody is there."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import Any

import pytest
from headrace_engine.config import Lease
from headrace_engine.engine.leases import DEFAULT_LEASE, Leases, lease_violations, resolved_lease
from headrace_engine.engine.model import Model
from headrace_engine.errors import InvalidArgument, NotFound
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import RequestView
from headrace_engine.result_types import FinishReason, GenerateStatus, SequenceView
from unit.engine.bench import Bench
from unit.engine.clock import settle


def listed(bench: Bench) -> list[RequestView]:
    """All requests, without being there for any."""
    return bench.engine.list_requests("")[0]


def alone(bench: Bench) -> SequenceView:
    """The one sequence there is, as ListRequests tells it."""
    (view,) = listed(bench)
    return view.sequences[0]


def leases(bench: Bench) -> Leases:
    return bench.engine._book.leases


async def ended(bench: Bench, lease: Lease | None = None) -> str:
    """A request that ended with one token."""
    accepted = await bench.start(config={"lease": lease})
    key = bench.added().key
    bench.core.step({key: 1}, ended={key: FinishReason.EOS})
    return accepted.handle


class TestRunning:
    async def test_a_request_without_readers_is_stopped_and_later_released(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        bench.pass_time(59.9)
        assert alone(bench).end is None
        bench.pass_time(0.1)
        end = alone(bench).end
        assert end is not None
        assert (end.finish_reason, end.status) == (FinishReason.LEASE_EXPIRED, GenerateStatus.INTERRUPTED)
        assert bench.core.ended == [bench.added().key]
        bench.pass_time(599.9)
        assert listed(bench)
        bench.pass_time(0.1)
        assert not listed(bench)

    async def test_what_it_brought_until_then_stays_readable(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        bench.core.step({bench.added().key: 9})
        bench.pass_time(60)
        (result,) = await bench.read_all(accepted.handle)
        assert result.elements is not None
        assert result.elements.token_ids == [9]
        assert result.end is not None
        assert result.end.finish_reason is FinishReason.LEASE_EXPIRED

    async def test_a_request_that_waits_for_its_turn_has_a_lease_too(self, bench: Bench) -> None:
        await bench.run(max_batch=1)
        for _ in range(3):
            await bench.start()
        bench.pass_time(60)
        assert all(view.sequences[0].end for view in listed(bench))

    async def test_a_reader_who_reads_nothing_keeps_it(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        async with aclosing(bench.engine.read(accepted.handle, 0, 0, "")) as results:
            reading = asyncio.ensure_future(anext(results))
            await settle()
            bench.pass_time(10_000)
            assert alone(bench).end is None
            assert listed(bench)[0].lease_expires is None
            bench.core.step({bench.added().key: 1})
            await reading
        bench.pass_time(59.9)
        assert alone(bench).end is None
        bench.pass_time(0.1)
        assert alone(bench).end is not None

    async def test_each_look_begins_it_anew(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        for _ in range(5):
            bench.pass_time(59)
            view, _ = await bench.engine.get_request(handle=accepted.handle)
            assert view.lease_expires == bench.clock.now + 60
        assert alone(bench).end is None

    async def test_listing_is_not_being_there(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        began = bench.clock.now
        bench.pass_time(30)
        assert listed(bench)[0].lease_expires == began + 60

    async def test_a_sync_in_progress_keeps_it(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        waiting = asyncio.create_task(bench.engine.sync_request(handle=accepted.handle))
        of_model = asyncio.create_task(bench.engine.sync_request(model_name="smol"))
        await settle()
        bench.pass_time(1000)
        waiting.cancel()
        await settle()
        bench.pass_time(1000)
        assert alone(bench).end is None
        of_model.cancel()
        await settle()
        bench.pass_time(60)
        assert alone(bench).end is not None

    async def test_two_readers_and_the_last_one_counts(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        request = bench.engine._book.find(accepted.handle, "")
        request.arrive()
        request.arrive()
        request.leave()
        bench.pass_time(100)
        assert listed(bench)[0].attached == 1
        assert alone(bench).end is None
        request.leave()
        bench.pass_time(60)
        assert alone(bench).end is not None


class TestEnded:
    async def test_it_runs_from_the_end(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        bench.pass_time(50)
        key = bench.added().key
        bench.core.step({key: 1}, ended={key: FinishReason.EOS})
        bench.pass_time(599.9)
        assert listed(bench)
        bench.pass_time(0.1)
        assert not listed(bench)

    async def test_it_runs_from_the_last_leaving(self, bench: Bench) -> None:
        await bench.run()
        handle = await ended(bench)
        bench.pass_time(500)
        await bench.read_all(handle)
        bench.pass_time(599.9)
        assert listed(bench)
        bench.pass_time(0.1)
        with pytest.raises(NotFound):
            await bench.read_all(handle)

    async def test_it_may_be_shorter_than_what_was_left_of_the_running_part(self, bench: Bench) -> None:
        await bench.run()
        await bench.start(config={"lease": Lease(running=3000.0, ended=5.0)})
        bench.pass_time(12)
        key = bench.added().key
        bench.core.step({key: 1}, ended={key: FinishReason.EOS})
        bench.pass_time(4.9)
        assert listed(bench)
        bench.pass_time(0.1)
        assert not listed(bench)

    async def test_a_key_is_remembered_after_it(self, bench: Bench) -> None:
        await bench.run()
        await bench.start(request_id="r1", content=b"same")
        bench.pass_time(60)
        bench.pass_time(600)
        assert not listed(bench)
        with pytest.raises(NotFound, match="was released"):
            await bench.start(request_id="r1", content=b"same")

    async def test_a_model_that_is_gone_does_not_matter(self, bench: Bench) -> None:
        await bench.run()
        await ended(bench)
        await bench.engine.stop_model("smol")
        await bench.engine.release_model("smol")
        bench.pass_time(600)
        assert not listed(bench)


class TestBooks:
    async def test_coming_and_going_costs_nothing(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        for _ in range(1000):
            bench.pass_time(0.5)
            await bench.engine.get_request(handle=accepted.handle)
        assert len(leases(bench)._alarms._heap) == len(leases(bench)._alarms) == 1

    async def test_a_released_request_is_let_go(self, bench: Bench) -> None:
        await bench.run()
        handle = await ended(bench, Lease(ended=0.0))
        request = bench.engine._book.find(handle, "")
        request.arrive()
        await bench.engine.release_request(handle, "")
        request.leave()
        assert not len(leases(bench)._alarms)
        bench.pass_time(3600)
        assert not leases(bench)._alarms._heap

    async def test_a_look_that_changes_nothing_does_not_go_on_for_ever(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await bench.run()
        await bench.start()
        with monkeypatch.context() as patch:
            patch.setattr(Model, "end", lambda *arguments: None)
            bench.pass_time(60)
        assert alone(bench).end is None

    async def test_after_the_engine_s_end_nothing_is_looked_at(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        await bench.engine.close()
        assert leases(bench)._alarms._timer is None
        bench.pass_time(60)
        assert leases(bench)._alarms._timer is None


class TestConfig:
    async def test_the_effective_config_shows_both_parts(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        assert accepted.effective_config is not None
        assert accepted.effective_config.lease == DEFAULT_LEASE
        assert bench.engine.get_model("smol").effective is not None

    async def test_for_ever_is_the_server_s_longest(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start(config={"lease": Lease(running=0.0)})
        assert accepted.effective_config is not None
        assert accepted.effective_config.lease == Lease(running=3600.0, ended=600.0)
        bench.pass_time(3599)
        assert alone(bench).end is None
        bench.pass_time(1)
        assert alone(bench).end is not None

    async def test_a_model_has_its_own_lease(self, bench: Bench) -> None:
        await bench.run(default_lease=Lease(running=5.0), max_lease=100.0)
        effective = bench.engine.get_model("smol").effective
        assert effective is not None
        assert effective.config.default_lease == Lease(running=5.0, ended=100.0)
        assert effective.generation_defaults.lease == effective.config.default_lease
        accepted = await bench.start(config={"lease": Lease(ended=7.0)})
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
    async def test_what_is_out_of_range_is_refused_by_name(self, bench: Bench, lease: Lease, field: str) -> None:
        await bench.run()
        with pytest.raises(InvalidArgument, match="0 to 3600 s") as caught:
            await bench.start(config={"lease": lease})
        assert [violation.field for violation in caught.value.violations] == [field]

    @pytest.mark.parametrize(
        ("config", "field"),
        [
            ({"default_lease": Lease(running=101.0), "max_lease": 100.0}, "config.default_lease.running"),
            ({"default_lease": Lease(ended=4000.0)}, "config.default_lease.ended"),
            ({"max_lease": 0.0}, "config.max_lease"),
        ],
    )
    async def test_of_the_runtime_config_too(self, bench: Bench, config: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await bench.install(**config)
        assert [violation.field for violation in caught.value.violations] == [field]

    def test_parts_that_nobody_set_are_lowered_to_the_longest(self) -> None:
        assert resolved_lease(None, None, 50.0) == Lease(50.0, 50.0)
        assert resolved_lease(Lease(running=10.0), Lease(20.0, 30.0), 50.0) == Lease(10.0, 30.0)

    def test_a_lease_of_the_longest_is_in_range(self) -> None:
        assert not lease_violations(Lease(100.0, 0.0), 100.0, "lease")
        assert not lease_violations(GenerationConfig().lease, 100.0, "lease")
