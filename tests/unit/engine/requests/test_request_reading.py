"""Reading a request through the engine's API: streams, and GetRequest."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from headrace_engine.errors import InvalidArgument, NotFound, OutOfRange
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.engine.refusals import not_found
from support.engine.rig import Rig
from support.models.vocabularies import byte_level

HELLO = byte_level().encode("Hello").ids
EMOJI = byte_level().encode("👍").ids


class TestReading:
    async def test_a_request_is_read_from_its_first_token_to_its_end(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        reading = asyncio.create_task(rig.read_all(accepted.handle))
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
    async def test_bc010_the_last_token_comes_with_the_finish(self, rig: Rig, count: int, interval: int) -> None:
        core = await rig.run()
        accepted = await rig.start(config={"max_new_tokens": count})
        key = rig.added().key
        assert rig.added().max_new == count
        ids: list[int] = []
        text = ""
        async with aclosing(rig.engine.read(accepted.handle, 0, 0, "")) as results:
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

    async def test_bc010_the_end_may_follow_its_last_token_in_a_later_step(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        core.step({key: 41})
        core.step(ended={key: FinishReason.NO_TOKEN_LEFT})
        (result,) = await rig.read_all(accepted.handle)
        assert result.elements is not None
        assert result.elements.token_ids == [41]
        assert result.end is not None

    async def test_several_readers_read_at_their_own_positions(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        for token_id in (41, 42, 43):
            core.step({key: token_id})
        readers = [asyncio.create_task(rig.read_all(accepted.handle, position)) for position in range(4)]
        await settle()
        assert (await rig.engine.get_request(handle=accepted.handle))[0].attached == 4
        core.step({key: 44}, ended={key: FinishReason.MAX_LENGTH})
        for position, results in enumerate(await asyncio.gather(*readers)):
            ids = [token_id for result in results if result.elements for token_id in result.elements.token_ids]
            assert ids == [41, 42, 43, 44][position:]
            assert results[-1].end is not None
        assert (await rig.engine.get_request(handle=accepted.handle))[0].attached == 0

    async def test_every_reader_sees_the_same_text_at_every_position(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        ids = [*HELLO, *EMOJI, *HELLO, EMOJI[0]]
        for token_id in ids:
            core.step({key: token_id})
        core.step(ended={key: FinishReason.MAX_LENGTH})
        whole = await self._text(rig, accepted.handle, 0)
        assert whole == byte_level().decode(ids)
        for position in range(len(ids) + 1):
            head = await rig.unread(accepted.handle)
            assert head is not None
            rest = await self._text(rig, accepted.handle, position)
            assert whole.endswith(rest)

    async def _text(self, rig: Rig, handle: str, position: int) -> str:
        results = await rig.read_all(handle, position)
        ends = [result.end.text for result in results if result.end]
        return "".join(result.elements.text for result in results if result.elements) + "".join(ends)

    async def test_leaving_a_read_stops_nothing(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        core.step({key: 41})
        async with aclosing(rig.engine.read(accepted.handle, 0, 0, "")) as results:
            await anext(results)
        assert core.ended == []
        core.step({key: 42})
        assert (await rig.sequence(accepted.handle)).generated_length == 2
        assert (await rig.engine.get_request(handle=accepted.handle))[0].attached == 0

    async def test_an_ended_request_is_read_again_and_again(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41}, ended={rig.added().key: FinishReason.EOS})
        assert await rig.read_all(accepted.handle) == await rig.read_all(accepted.handle)

    @pytest.mark.parametrize("position", [2, 2**32 - 1, -1])
    async def test_a_position_outside_the_log_is_told_at_the_call(self, rig: Rig, position: int) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41})
        with pytest.raises(OutOfRange):
            rig.engine.read(accepted.handle, 0, position, "")
        with pytest.raises(OutOfRange):
            await rig.engine.get_request(handle=accepted.handle, from_position=position)

    async def test_an_index_that_the_request_does_not_have_is_not_found(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        with pytest.raises(NotFound, match="none with index 1"):
            rig.engine.read(accepted.handle, 1, 0, "")

    async def test_release_ends_every_reader_that_waits(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        waits = [
            asyncio.create_task(rig.read_all(accepted.handle)),
            asyncio.create_task(rig.read_all(accepted.handle)),
            asyncio.create_task(rig.engine.sync_request(handle=accepted.handle)),
            asyncio.create_task(rig.engine.get_request(handle=accepted.handle, wait=600)),
            asyncio.create_task(rig.engine.get_request(handle=accepted.handle, wait=600, from_position=0)),
        ]
        await settle()
        await rig.engine.release_request(accepted.handle, "")
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(outcome, NotFound)
            assert "released" in outcome.message

    async def test_release_ends_a_reader_between_two_reads_too(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41})
        async with aclosing(rig.engine.read(accepted.handle, 0, 0, "")) as results:
            await anext(results)
            core.step({rig.added().key: 42})
            await rig.engine.release_request(accepted.handle, "")
            with pytest.raises(NotFound):
                await anext(results)


class TestGet:
    async def test_tells_the_request_s_own_status(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        seen = [(await rig.sequence(accepted.handle)).status]
        core.step(scheduled={key: 0})
        for token_id in (41, 42):
            core.step({key: token_id})
            seen.append((await rig.sequence(accepted.handle)).status)
        core.step(ended={key: FinishReason.EOS})
        seen.append((await rig.sequence(accepted.handle)).status)
        assert seen == ["INIT", "CONTEXT_FINISHED", "GENERATING", "FINISHED"]

    async def test_a_position_brings_what_is_unread_there(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        assert await rig.unread(accepted.handle, 0) is None
        core.step({rig.added().key: 41})
        elements = await rig.unread(accepted.handle, 0)
        assert elements is not None
        assert elements.token_ids == [41]
        assert await rig.unread(accepted.handle, 1) is None

    async def test_waits_for_something_unread(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41})
        call = asyncio.create_task(rig.engine.get_request(handle=accepted.handle, wait=600, from_position=1))
        await settle()
        assert not call.done()
        core.step({rig.added().key: 42})
        _, elements = await call
        assert elements is not None
        assert elements.token_ids == [42]

    async def test_the_end_is_something_unread(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        call = asyncio.create_task(rig.engine.get_request(handle=accepted.handle, wait=600, from_position=0))
        await settle()
        core.step(ended={rig.added().key: FinishReason.NO_TOKEN_LEFT})
        view, elements = await call
        assert elements is None
        assert view.sequences[0].end is not None

    async def test_without_a_position_it_waits_for_the_end(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        call = asyncio.create_task(rig.engine.get_request(handle=accepted.handle, wait=600))
        await settle()
        core.step({rig.added().key: 41})
        await settle()
        assert not call.done()
        core.step(ended={rig.added().key: FinishReason.EOS})
        view, elements = await call
        assert (elements, view.sequences[0].status) == (None, GenerateStatus.FINISHED)

    @pytest.mark.parametrize("position", [None, 0])
    async def test_running_out_of_time_is_no_error(self, rig: Rig, position: int | None) -> None:
        await rig.run()
        accepted = await rig.start()
        view, elements = await rig.engine.get_request(handle=accepted.handle, wait=1e-9, from_position=position)
        assert (elements, view.sequences[0].status, view.attached) == (None, GenerateStatus.INIT, 0)

    @pytest.mark.parametrize("wait", [-1.0, float("nan"), float("inf")])
    async def test_a_wait_that_is_no_time_is_refused(self, rig: Rig, wait: float) -> None:
        await rig.run()
        accepted = await rig.start()
        with pytest.raises(InvalidArgument) as caught:
            await rig.engine.get_request(handle=accepted.handle, wait=wait)
        assert caught.value.violations[0].field == "wait"

    async def test_an_index_needs_a_position(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        with pytest.raises(InvalidArgument, match="index = 1 needs from_position"):
            await rig.engine.get_request(handle=accepted.handle, index=1)

    async def test_finds_a_request_by_the_id_of_its_client(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start(request_id="r1")
        view, _ = await rig.engine.get_request(request_id="r1")
        assert view.request == accepted
        assert (await not_found(rig.engine.get_request(request_id="r2"))).reason == "UNKNOWN_REQUEST"
        assert (await not_found(rig.engine.get_request(request_id=""))).reason == "UNKNOWN_REQUEST"
