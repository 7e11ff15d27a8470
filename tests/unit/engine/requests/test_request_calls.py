"""Requests through the engine's API: whose they are, lists, one-shot generation, and models that take none."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from headrace_engine.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus, ReadResult, RequestStat
from support.clocks.clock import settle
from support.engine.refusals import not_found
from support.engine.rig import NAME, Rig


class TestOwners:
    async def test_to_others_a_request_does_not_exist(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start(owner="me", request_id="r1")
        for owner in ("you", ""):
            for call in (
                rig.engine.stop_request(accepted.handle, owner),
                rig.engine.sync_request(handle=accepted.handle, owner=owner),
                rig.engine.get_request(handle=accepted.handle, owner=owner),
                rig.engine.get_request(request_id="r1", owner=owner),
            ):
                assert (await not_found(call)).reason == "UNKNOWN_REQUEST"
            with pytest.raises(NotFound):
                rig.engine.read(accepted.handle, 0, 0, owner)
            await rig.engine.release_request(accepted.handle, owner)
            assert rig.engine.list_requests(owner)[0] == []
        assert core.ended == []
        assert len(rig.engine.list_requests("me")[0]) == 1


class TestList:
    async def test_newest_first_in_pages_of_any_size(self, rig: Rig) -> None:
        await rig.run()
        handles = [(await rig.start()).handle for _ in range(7)]
        for size in range(1, 9):
            seen: list[str] = []
            token = ""
            pages = 0
            while pages == 0 or token:
                views, token = rig.engine.list_requests("", page_size=size, page_token=token)
                assert len(views) <= size
                seen += [view.request.handle for view in views]
                pages += 1
            assert seen == handles[::-1]
            assert pages == -(-7 // size)

    async def test_requests_changing_between_two_pages_shift_nothing(self, rig: Rig) -> None:
        await rig.run()
        handles = [(await rig.start()).handle for _ in range(4)]
        first, token = rig.engine.list_requests("", page_size=2)
        await rig.start()
        await rig.engine.release_request(handles[2], "")
        second, _ = rig.engine.list_requests("", page_size=2, page_token=token)
        assert [view.request.handle for view in (*first, *second)] == handles[::-1]

    async def test_a_handover_stands_where_its_first_start_arrived(self, rig: Rig) -> None:
        """As gateways that join lists see arrivals alone: one out of order would hide those behind it."""
        await rig.run()
        arrived = rig.clock()
        handles = []
        for _ in range(3):
            rig.clock.advance(10)
            handles.append((await rig.start()).handle)
        resume = (ResumedSequence(stat=RequestStat(arrival_time=arrived + 15)),)
        handles.insert(1, (await rig.start(request_id="r1", handover=1, resume=resume)).handle)
        first, token = rig.engine.list_requests("", page_size=2)
        second, last = rig.engine.list_requests("", page_size=2, page_token=token)
        assert [view.request.handle for view in (*first, *second)] == handles[::-1]
        arrivals = [view.sequences[0].stat.arrival_time for view in (*first, *second)]
        assert (arrivals, last) == ([arrived + 30, arrived + 20, arrived + 15, arrived + 10], "")

    async def test_only_of_a_model_or_only_running(self, rig: Rig) -> None:
        await rig.run("other")
        elsewhere = await rig.start(model_name="other")
        core = await rig.run()
        ended, running = await rig.start(), await rig.start()
        core.step(ended={core.added[0].key: FinishReason.EOS})

        def listed(**choice: Any) -> list[str]:
            return [view.request.handle for view in rig.engine.list_requests("", **choice)[0]]

        assert listed(model_name=NAME) == [running.handle, ended.handle]
        assert listed(running_only=True) == [running.handle, elsewhere.handle]
        assert listed(model_name="other", running_only=True) == [elsewhere.handle]
        assert listed(model_name="unknown") == []

    async def test_effective_configs_are_left_out(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        (view,), _ = rig.engine.list_requests("")
        assert view.request.effective_config is None

    @pytest.mark.parametrize("size", [1001, -1])
    async def test_a_page_size_out_of_range_is_refused(self, rig: Rig, size: int) -> None:
        with pytest.raises(InvalidArgument, match=f"page_size = {size} is out of range"):
            rig.engine.list_requests("", page_size=size)

    @pytest.mark.parametrize("token", ["x", "-1", "1.5", "7", "1-2-3", "٣-1", "9" * 5000 + "-1"])
    async def test_a_token_that_was_never_given_is_refused(self, rig: Rig, token: str) -> None:
        with pytest.raises(InvalidArgument, match="no token of an earlier page"):
            rig.engine.list_requests("", page_token=token)


class TestGenerate:
    async def test_starts_reads_and_releases(self, rig: Rig) -> None:
        core = await rig.run()
        seen: list[Any] = []

        async def run() -> None:
            seen.extend([item async for item in rig.engine.generate(rig.request())])

        running = asyncio.create_task(run())
        await settle()
        key = rig.added().key
        core.step({key: 41})
        await settle()
        core.step({key: 42}, ended={key: FinishReason.EOS})
        await running
        accepted = seen[0][0]
        assert seen[0] == (accepted, 0, None)
        results: list[ReadResult] = [item[2] for item in seen[1:]]
        assert [item[:2] for item in seen[1:]] == [(None, 0)] * 2
        assert [result.elements.token_ids for result in results if result.elements] == [[41], [42]]
        assert results[-1].end is not None
        assert rig.engine.list_requests("")[0] == []

    async def test_leaving_stops_the_request(self, rig: Rig) -> None:
        core = await rig.run()
        async with aclosing(rig.engine.generate(rig.request())) as items:
            await anext(items)
            core.step({rig.added().key: 41})
            await anext(items)
        assert core.ended == [rig.added().key]
        assert rig.engine.list_requests("")[0] == []

    async def test_a_refusal_is_raised_and_starts_nothing(self, rig: Rig) -> None:
        core = await rig.run()
        with pytest.raises(InvalidArgument):
            await anext(rig.engine.generate(rig.request(())))
        assert core.added == []


class TestDraining:
    async def test_new_requests_are_refused_and_running_ones_may_end(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        drain = asyncio.create_task(rig.engine.drain(600))
        await settle()
        assert rig.engine.draining
        with pytest.raises(Unavailable) as caught:
            await rig.start()
        assert (caught.value.reason, caught.value.retry_after) == ("DRAINING", 1.0)
        core.step({rig.added().key: 41}, ended={rig.added().key: FinishReason.EOS})
        await drain
        end = (await rig.sequence(accepted.handle)).end
        assert end is not None
        assert end.finish_reason is FinishReason.EOS

    async def test_after_the_limit_they_are_ended_as_drained(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        await rig.engine.drain(0)
        end = (await rig.sequence(accepted.handle)).end
        assert end is not None
        assert (end.finish_reason, end.status) == (FinishReason.DRAINED, GenerateStatus.INTERRUPTED)
        assert core.ended == [rig.added().key]

    async def test_an_engine_without_requests_drains_at_once(self, rig: Rig) -> None:
        await rig.engine.drain(600)
        assert rig.engine.draining

    async def test_a_retry_of_a_start_still_finds_its_request(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start(request_id="r1", content=b"c")
        await rig.engine.drain(0)
        again = await rig.start(request_id="r1", content=b"c")
        assert (again.handle, again.joined) == (accepted.handle, True)

    async def test_closing_ends_what_still_runs(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        await rig.engine.close()
        end = (await rig.sequence(accepted.handle)).end
        assert end is not None
        assert end.finish_reason is FinishReason.DRAINED


class TestWrongModel:
    async def test_a_request_to_an_unknown_model_is_not_found(self, rig: Rig) -> None:
        assert (await not_found(rig.start(model_name="none"))).reason == "UNKNOWN_MODEL"

    async def test_bc101_a_start_on_a_stopped_model_is_refused(self, rig: Rig) -> None:
        await rig.run()
        await rig.engine.stop_model(NAME)
        with pytest.raises(FailedPrecondition) as caught:
            await rig.start()
        assert caught.value.reason == "MODEL_NOT_RUNNING"
