"""Leases: what happens to requests while nobody is there."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from headrace_engine.config import Lease
from headrace_engine.errors import NotFound
from headrace_engine.request_types import Pooling
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.engine.lease_rig import alone, ended, listed
from support.engine.rig import Rig


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
