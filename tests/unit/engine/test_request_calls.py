"""Requests through the engine's API: start, read, stop, release, wait, list."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from headrace_engine.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unavailable
from headrace_engine.result_types import FinishReason, GenerateStatus, ReadResult
from unit.engine.bench import NAME, Bench
from unit.engine.clock import settle
from unit.engine.vocabularies import byte_level

HELLO = byte_level().encode("Hello").ids
EMOJI = byte_level().encode("👍").ids


async def not_found(call: Any) -> NotFound:
    with pytest.raises(NotFound) as caught:
        await call
    return caught.value


class TestReading:
    async def test_a_request_is_read_from_its_first_token_to_its_end(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        reading = asyncio.create_task(bench.read_all(accepted.handle))
        await settle()
        for token_id in HELLO:
            core.step({key: token_id})
            await settle()
        core.step({key: 2}, ended={key: FinishReason.EOS})
        results = await reading
        elements = [result.elements for result in results if result.elements]
        assert [token_id for each in elements for token_id in each.token_ids] == [*HELLO, 2]
        assert "".join(each.text for each in elements) == "Hello"
        assert [result.end is not None for result in results] == [False] * len(HELLO) + [True]
        assert [result.status for result in results][-1] is GenerateStatus.FINISHED

    @pytest.mark.parametrize("count", [1, 2, 7])
    @pytest.mark.parametrize("interval", [1, 4, 50])
    async def test_bc010_the_last_token_comes_with_the_finish_at_any_reading_interval(
        self, bench: Bench, count: int, interval: int
    ) -> None:
        core = await bench.run()
        accepted = await bench.start(config={"max_new_tokens": count})
        key = bench.added().key
        assert bench.added().max_new == count
        ids: list[int] = []
        text = ""
        async with aclosing(bench.engine.read(accepted.handle, 0, 0, "")) as results:
            for number in range(1, count + 1):
                last = number == count
                core.step({key: 40 + number}, ended={key: FinishReason.MAX_LENGTH} if last else {})
                if number % interval and not last:
                    continue
                result = await anext(results)
                assert result.elements is not None
                ids += result.elements.token_ids
                text += result.elements.text
                assert (result.end is not None) is last
        assert ids == [41 + number for number in range(count)]
        assert text == byte_level().decode(ids)

    async def test_bc010_the_end_may_follow_its_last_token_in_a_later_step(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        core.step({key: 41})
        core.step(ended={key: FinishReason.NO_TOKEN_LEFT})
        (result,) = await bench.read_all(accepted.handle)
        assert result.elements is not None
        assert result.elements.token_ids == [41]
        assert result.end is not None

    async def test_several_readers_read_at_their_own_positions(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        for token_id in (41, 42, 43):
            core.step({key: token_id})
        readers = [asyncio.create_task(bench.read_all(accepted.handle, position)) for position in range(4)]
        await settle()
        assert (await bench.engine.get_request(handle=accepted.handle))[0].attached == 4
        core.step({key: 44}, ended={key: FinishReason.MAX_LENGTH})
        for position, results in enumerate(await asyncio.gather(*readers)):
            ids = [token_id for result in results if result.elements for token_id in result.elements.token_ids]
            assert ids == [41, 42, 43, 44][position:]
            assert results[-1].end is not None
        assert (await bench.engine.get_request(handle=accepted.handle))[0].attached == 0

    async def test_every_reader_sees_the_same_text_at_every_position(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        ids = [*HELLO, *EMOJI, *HELLO, EMOJI[0]]
        for token_id in ids:
            core.step({key: token_id})
        core.step(ended={key: FinishReason.MAX_LENGTH})
        whole = await self._text(bench, accepted.handle, 0)
        assert whole == byte_level().decode(ids)
        for position in range(len(ids) + 1):
            head = await bench.unread(accepted.handle)
            assert head is not None
            rest = await self._text(bench, accepted.handle, position)
            assert whole.endswith(rest)

    async def _text(self, bench: Bench, handle: str, position: int) -> str:
        results = await bench.read_all(handle, position)
        ends = [result.end.text for result in results if result.end]
        return "".join(result.elements.text for result in results if result.elements) + "".join(ends)

    async def test_leaving_a_read_stops_nothing(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        core.step({key: 41})
        async with aclosing(bench.engine.read(accepted.handle, 0, 0, "")) as results:
            await anext(results)
        assert core.ended == []
        core.step({key: 42})
        assert (await bench.sequence(accepted.handle)).generated_length == 2
        assert (await bench.engine.get_request(handle=accepted.handle))[0].attached == 0

    async def test_an_ended_request_is_read_again_and_again(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41}, ended={bench.added().key: FinishReason.EOS})
        assert await bench.read_all(accepted.handle) == await bench.read_all(accepted.handle)

    @pytest.mark.parametrize("position", [2, 2**32 - 1, -1])
    async def test_a_position_outside_the_log_is_told_at_the_call(self, bench: Bench, position: int) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41})
        with pytest.raises(OutOfRange):
            bench.engine.read(accepted.handle, 0, position, "")
        with pytest.raises(OutOfRange):
            await bench.engine.get_request(handle=accepted.handle, from_position=position)

    async def test_an_index_that_the_request_does_not_have_is_not_found(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        with pytest.raises(NotFound, match="none with index 1"):
            bench.engine.read(accepted.handle, 1, 0, "")

    async def test_release_ends_every_reader_that_waits(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        waits = [
            asyncio.create_task(bench.read_all(accepted.handle)),
            asyncio.create_task(bench.read_all(accepted.handle)),
            asyncio.create_task(bench.engine.sync_request(handle=accepted.handle)),
            asyncio.create_task(bench.engine.get_request(handle=accepted.handle, wait=600)),
            asyncio.create_task(bench.engine.get_request(handle=accepted.handle, wait=600, from_position=0)),
        ]
        await settle()
        await bench.engine.release_request(accepted.handle, "")
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(outcome, NotFound)
            assert "released" in outcome.message

    async def test_release_ends_a_reader_between_two_reads_too(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41})
        async with aclosing(bench.engine.read(accepted.handle, 0, 0, "")) as results:
            await anext(results)
            core.step({bench.added().key: 42})
            await bench.engine.release_request(accepted.handle, "")
            with pytest.raises(NotFound):
                await anext(results)


class TestGet:
    async def test_tells_the_request_s_own_status(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        seen = [(await bench.sequence(accepted.handle)).status]
        core.step(scheduled={key: 0})
        for token_id in (41, 42):
            core.step({key: token_id})
            seen.append((await bench.sequence(accepted.handle)).status)
        core.step(ended={key: FinishReason.EOS})
        seen.append((await bench.sequence(accepted.handle)).status)
        assert seen == ["INIT", "CONTEXT_FINISHED", "GENERATING", "FINISHED"]

    async def test_a_position_brings_what_is_unread_there(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        assert await bench.unread(accepted.handle, 0) is None
        core.step({bench.added().key: 41})
        elements = await bench.unread(accepted.handle, 0)
        assert elements is not None
        assert elements.token_ids == [41]
        assert await bench.unread(accepted.handle, 1) is None

    async def test_waits_for_something_unread(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41})
        call = asyncio.create_task(bench.engine.get_request(handle=accepted.handle, wait=600, from_position=1))
        await settle()
        assert not call.done()
        core.step({bench.added().key: 42})
        _, elements = await call
        assert elements is not None
        assert elements.token_ids == [42]

    async def test_the_end_is_something_unread(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        call = asyncio.create_task(bench.engine.get_request(handle=accepted.handle, wait=600, from_position=0))
        await settle()
        core.step(ended={bench.added().key: FinishReason.NO_TOKEN_LEFT})
        view, elements = await call
        assert elements is None
        assert view.sequences[0].end is not None

    async def test_without_a_position_it_waits_for_the_end(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        call = asyncio.create_task(bench.engine.get_request(handle=accepted.handle, wait=600))
        await settle()
        core.step({bench.added().key: 41})
        await settle()
        assert not call.done()
        core.step(ended={bench.added().key: FinishReason.EOS})
        view, elements = await call
        assert (elements, view.sequences[0].status) == (None, GenerateStatus.FINISHED)

    @pytest.mark.parametrize("position", [None, 0])
    async def test_running_out_of_time_is_no_error(self, bench: Bench, position: int | None) -> None:
        await bench.run()
        accepted = await bench.start()
        view, elements = await bench.engine.get_request(handle=accepted.handle, wait=1e-9, from_position=position)
        assert (elements, view.sequences[0].status, view.attached) == (None, GenerateStatus.INIT, 0)

    @pytest.mark.parametrize("wait", [-1.0, float("nan"), float("inf")])
    async def test_a_wait_that_is_no_time_is_refused(self, bench: Bench, wait: float) -> None:
        await bench.run()
        accepted = await bench.start()
        with pytest.raises(InvalidArgument) as caught:
            await bench.engine.get_request(handle=accepted.handle, wait=wait)
        assert caught.value.violations[0].field == "wait"

    async def test_an_index_needs_a_position(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        with pytest.raises(InvalidArgument, match="index = 1 needs from_position"):
            await bench.engine.get_request(handle=accepted.handle, index=1)

    async def test_finds_a_request_by_the_id_of_its_client(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start(request_id="r1")
        view, _ = await bench.engine.get_request(request_id="r1")
        assert view.request == accepted
        assert (await not_found(bench.engine.get_request(request_id="r2"))).reason == "UNKNOWN_REQUEST"
        assert (await not_found(bench.engine.get_request(request_id=""))).reason == "UNKNOWN_REQUEST"


class TestStop:
    async def test_ends_the_request_at_once_and_its_tokens_stay(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        key = bench.added().key
        core.step({key: 41})
        (sequence,) = await bench.engine.stop_request(accepted.handle, "")
        assert sequence.end is not None
        assert (sequence.end.finish_reason, sequence.status) == (FinishReason.STOPPED, GenerateStatus.FINISHED)
        assert core.ended == [key]
        core.step({key: 42})  # it was under way
        elements = await bench.unread(accepted.handle)
        assert elements is not None
        assert elements.token_ids == [41]

    async def test_before_the_first_token_too(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        (sequence,) = await bench.engine.stop_request(accepted.handle, "")
        assert (sequence.generated_length, sequence.status) == (0, GenerateStatus.FINISHED)

    async def test_text_that_was_held_back_is_in_the_end_record(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: EMOJI[0]})
        (sequence,) = await bench.engine.stop_request(accepted.handle, "")
        assert sequence.end is not None
        assert sequence.end.text == "\ufffd"

    async def test_bc101_stopping_again_or_after_the_end_changes_nothing(self, bench: Bench) -> None:
        core = await bench.run()
        ended, stopped = await bench.start(), await bench.start()
        key = core.added[0].key
        core.step({key: 41}, ended={key: FinishReason.EOS})
        (first,) = await bench.engine.stop_request(ended.handle, "")
        assert first.end is not None
        assert first.end.finish_reason is FinishReason.EOS
        assert core.ended == []
        once = await bench.engine.stop_request(stopped.handle, "")
        bench.clock.advance(5)
        assert await bench.engine.stop_request(stopped.handle, "") == once
        assert core.ended == [core.added[1].key]

    async def test_bc101_an_unknown_or_released_handle_is_not_found(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        await bench.engine.release_request(accepted.handle, "")
        for handle in (accepted.handle, accepted.handle + "0", "", "a/b", "e1//x", "x" * 1000):
            assert (await not_found(bench.engine.stop_request(handle, ""))).reason == "UNKNOWN_REQUEST"


class TestRelease:
    async def test_bc101_of_a_running_request_stops_it(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        await bench.engine.release_request(accepted.handle, "")
        assert core.ended == [bench.added().key]
        assert bench.engine.live_requests == 0
        await not_found(bench.sequence(accepted.handle))

    async def test_bc101_twice_or_of_an_unknown_handle_succeeds(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        for handle in (accepted.handle, accepted.handle, "", "nonsense", "e1/0123456789abcdef/0"):
            await bench.engine.release_request(handle, "")

    async def test_every_other_call_is_not_found_at_once(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        await bench.engine.release_request(accepted.handle, "")
        for call in (
            bench.engine.stop_request(accepted.handle, ""),
            bench.engine.sync_request(handle=accepted.handle),
            bench.engine.get_request(handle=accepted.handle, wait=600),
        ):
            await not_found(call)
        with pytest.raises(NotFound):
            bench.engine.read(accepted.handle, 0, 0, "")
        assert bench.engine.list_requests("")[0] == []

    async def test_the_engine_s_name_in_a_handle_is_not_looked_at(self, bench: Bench) -> None:
        """A gateway may know the engine by another name."""
        await bench.run()
        accepted = await bench.start()
        handle = "/".join(["other", *accepted.handle.split("/")[1:]])
        assert (await bench.sequence(handle)).status is GenerateStatus.INIT

    async def test_a_handle_of_another_start_of_the_engine_is_lost(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        await bench.engine.close()
        bench.new_engine()
        error = await not_found(bench.sequence(accepted.handle))
        assert (error.reason, error.metadata) == ("ENGINE_LOST", {"handle": accepted.handle})
        await bench.engine.release_request(accepted.handle, "")


class TestSync:
    async def test_waits_for_one_request(self, bench: Bench) -> None:
        core = await bench.run()
        accepted, other = await bench.start(), await bench.start()
        call = asyncio.create_task(bench.engine.sync_request(handle=accepted.handle))
        await settle()
        assert (await bench.engine.get_request(handle=accepted.handle))[0].attached == 1
        core.step({core.added[0].key: 41})
        await settle()
        assert not call.done()
        core.step(ended={core.added[0].key: FinishReason.EOS})
        (view,) = await call
        assert view.request.handle == accepted.handle
        assert view.request.effective_config is None
        assert view.sequences[0].status is GenerateStatus.FINISHED
        assert (await bench.sequence(other.handle)).status is GenerateStatus.INIT

    async def test_of_an_ended_request_returns_at_once(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step(ended={bench.added().key: FinishReason.EOS})
        assert len(await bench.engine.sync_request(handle=accepted.handle)) == 1

    async def test_waits_for_all_of_the_owner_s_to_a_model_that_were_started_before(self, bench: Bench) -> None:
        await bench.run("other")
        await bench.start(model_name="other", owner="me")
        core = await bench.run()
        mine = [await bench.start(owner="me") for _ in range(2)]
        await bench.start(owner="you")
        call = asyncio.create_task(bench.engine.sync_request(model_name=NAME, owner="me"))
        await settle()
        await bench.start(owner="me")
        keys = [added.key for added in core.added]
        core.step(ended={keys[0]: FinishReason.EOS})
        await settle()
        assert not call.done()
        core.step(ended={keys[1]: FinishReason.EOS})
        assert [view.request.handle for view in await call] == [accepted.handle for accepted in mine]

    async def test_of_a_model_a_request_that_is_released_meanwhile_has_ended(self, bench: Bench) -> None:
        core = await bench.run()
        first = await bench.start()
        await bench.start()
        call = asyncio.create_task(bench.engine.sync_request(model_name=NAME))
        await settle()
        await bench.engine.release_request(first.handle, "")
        core.step(ended={core.added[1].key: FinishReason.EOS})
        assert [view.sequences[0].end is not None for view in await call] == [True, True]

    async def test_of_a_model_without_requests_returns_at_once(self, bench: Bench) -> None:
        await bench.install()
        assert await bench.engine.sync_request(model_name=NAME) == []

    async def test_an_unknown_model_is_not_found(self, bench: Bench) -> None:
        assert (await not_found(bench.engine.sync_request(model_name="none"))).reason == "UNKNOWN_MODEL"

    async def test_a_wait_that_is_cut_leaves_the_request_alone(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        call = asyncio.create_task(bench.engine.sync_request(handle=accepted.handle))
        await settle()
        call.cancel()
        await settle()
        assert core.ended == []
        assert (await bench.engine.get_request(handle=accepted.handle))[0].attached == 0


class TestOwners:
    async def test_to_others_a_request_does_not_exist(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start(owner="me", request_id="r1")
        for owner in ("you", ""):
            for call in (
                bench.engine.stop_request(accepted.handle, owner),
                bench.engine.sync_request(handle=accepted.handle, owner=owner),
                bench.engine.get_request(handle=accepted.handle, owner=owner),
                bench.engine.get_request(request_id="r1", owner=owner),
            ):
                assert (await not_found(call)).reason == "UNKNOWN_REQUEST"
            with pytest.raises(NotFound):
                bench.engine.read(accepted.handle, 0, 0, owner)
            await bench.engine.release_request(accepted.handle, owner)
            assert bench.engine.list_requests(owner)[0] == []
        assert core.ended == []
        assert len(bench.engine.list_requests("me")[0]) == 1


class TestList:
    async def test_newest_first_in_pages_of_any_size(self, bench: Bench) -> None:
        await bench.run()
        handles = [(await bench.start()).handle for _ in range(7)]
        for size in range(1, 9):
            seen: list[str] = []
            token = ""
            pages = 0
            while pages == 0 or token:
                views, token = bench.engine.list_requests("", page_size=size, page_token=token)
                assert len(views) <= size
                seen += [view.request.handle for view in views]
                pages += 1
            assert seen == handles[::-1]
            assert pages == -(-7 // size)

    async def test_requests_that_come_or_go_between_two_pages_shift_nothing(self, bench: Bench) -> None:
        await bench.run()
        handles = [(await bench.start()).handle for _ in range(4)]
        first, token = bench.engine.list_requests("", page_size=2)
        await bench.start()
        await bench.engine.release_request(handles[2], "")
        second, _ = bench.engine.list_requests("", page_size=2, page_token=token)
        assert [view.request.handle for view in (*first, *second)] == handles[::-1]

    async def test_only_of_a_model_or_only_running(self, bench: Bench) -> None:
        await bench.run("other")
        elsewhere = await bench.start(model_name="other")
        core = await bench.run()
        ended, running = await bench.start(), await bench.start()
        core.step(ended={core.added[0].key: FinishReason.EOS})

        def listed(**choice: Any) -> list[str]:
            return [view.request.handle for view in bench.engine.list_requests("", **choice)[0]]

        assert listed(model_name=NAME) == [running.handle, ended.handle]
        assert listed(running_only=True) == [running.handle, elsewhere.handle]
        assert listed(model_name="other", running_only=True) == [elsewhere.handle]
        assert listed(model_name="unknown") == []

    async def test_effective_configs_are_left_out(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        (view,), _ = bench.engine.list_requests("")
        assert view.request.effective_config is None

    @pytest.mark.parametrize("size", [1001, -1])
    async def test_a_page_size_out_of_range_is_refused(self, bench: Bench, size: int) -> None:
        with pytest.raises(InvalidArgument, match=f"page_size = {size} is out of range"):
            bench.engine.list_requests("", page_size=size)

    @pytest.mark.parametrize("token", ["x", "-1", "1.5", "٣", "9" * 5000])
    async def test_a_token_that_was_never_given_is_refused(self, bench: Bench, token: str) -> None:
        with pytest.raises(InvalidArgument, match="no token of an earlier page"):
            bench.engine.list_requests("", page_token=token)


class TestGenerate:
    async def test_starts_reads_and_releases(self, bench: Bench) -> None:
        core = await bench.run()
        seen: list[Any] = []

        async def run() -> None:
            seen.extend([item async for item in bench.engine.generate(bench.request())])

        running = asyncio.create_task(run())
        await settle()
        key = bench.added().key
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
        assert bench.engine.list_requests("")[0] == []

    async def test_leaving_stops_the_request(self, bench: Bench) -> None:
        core = await bench.run()
        async with aclosing(bench.engine.generate(bench.request())) as items:
            await anext(items)
            core.step({bench.added().key: 41})
            await anext(items)
        assert core.ended == [bench.added().key]
        assert bench.engine.list_requests("")[0] == []

    async def test_a_refusal_is_raised_and_starts_nothing(self, bench: Bench) -> None:
        core = await bench.run()
        with pytest.raises(InvalidArgument):
            await anext(bench.engine.generate(bench.request(())))
        assert core.added == []


class TestDraining:
    async def test_new_requests_are_refused_and_running_ones_may_end(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        drain = asyncio.create_task(bench.engine.drain(600))
        await settle()
        assert bench.engine.draining
        with pytest.raises(Unavailable) as caught:
            await bench.start()
        assert (caught.value.reason, caught.value.retry_after) == ("DRAINING", 1.0)
        core.step({bench.added().key: 41}, ended={bench.added().key: FinishReason.EOS})
        await drain
        end = (await bench.sequence(accepted.handle)).end
        assert end is not None
        assert end.finish_reason is FinishReason.EOS

    async def test_after_the_limit_they_are_ended_as_drained(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        await bench.engine.drain(0)
        end = (await bench.sequence(accepted.handle)).end
        assert end is not None
        assert (end.finish_reason, end.status) == (FinishReason.DRAINED, GenerateStatus.INTERRUPTED)
        assert core.ended == [bench.added().key]

    async def test_an_engine_without_requests_drains_at_once(self, bench: Bench) -> None:
        await bench.engine.drain(600)
        assert bench.engine.draining

    async def test_a_retry_of_a_start_still_finds_its_request(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start(request_id="r1", content=b"c")
        await bench.engine.drain(0)
        again = await bench.start(request_id="r1", content=b"c")
        assert (again.handle, again.joined) == (accepted.handle, True)

    async def test_closing_ends_what_still_runs(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        await bench.engine.close()
        end = (await bench.sequence(accepted.handle)).end
        assert end is not None
        assert end.finish_reason is FinishReason.DRAINED


class TestWrongModel:
    async def test_a_request_to_an_unknown_model_is_not_found(self, bench: Bench) -> None:
        assert (await not_found(bench.start(model_name="none"))).reason == "UNKNOWN_MODEL"

    async def test_bc101_a_start_on_a_stopped_model_is_refused(self, bench: Bench) -> None:
        await bench.run()
        await bench.engine.stop_model(NAME)
        with pytest.raises(FailedPrecondition) as caught:
            await bench.start()
        assert caught.value.reason == "MODEL_NOT_RUNNING"
