"""Stopping, releasing and waiting for requests through the engine's API."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.errors import NotFound
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.engine.refusals import not_found
from support.engine.rig import NAME, Rig
from support.models.vocabularies import byte_level

EMOJI = byte_level().encode("👍").ids


class TestStop:
    async def test_ends_the_request_at_once_and_its_tokens_stay(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        key = rig.added().key
        core.step({key: 41})
        (sequence,) = await rig.engine.stop_request(accepted.handle, "")
        assert sequence.end is not None
        assert (sequence.end.finish_reason, sequence.status) == (FinishReason.STOPPED, GenerateStatus.FINISHED)
        assert core.ended == [key]
        core.step({key: 42})  # it was under way
        elements = await rig.unread(accepted.handle)
        assert elements is not None
        assert elements.token_ids == [41]

    async def test_before_the_first_token_too(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        (sequence,) = await rig.engine.stop_request(accepted.handle, "")
        assert (sequence.generated_length, sequence.status) == (0, GenerateStatus.FINISHED)

    async def test_text_that_was_held_back_is_in_the_end_record(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: EMOJI[0]})
        (sequence,) = await rig.engine.stop_request(accepted.handle, "")
        assert sequence.end is not None
        assert sequence.end.text == "\ufffd"

    async def test_bc101_stopping_again_or_after_the_end_changes_nothing(self, rig: Rig) -> None:
        core = await rig.run()
        ended, stopped = await rig.start(), await rig.start()
        key = core.added[0].key
        core.step({key: 41}, ended={key: FinishReason.EOS})
        (first,) = await rig.engine.stop_request(ended.handle, "")
        assert first.end is not None
        assert first.end.finish_reason is FinishReason.EOS
        assert core.ended == []
        once = await rig.engine.stop_request(stopped.handle, "")
        rig.clock.advance(5)
        assert await rig.engine.stop_request(stopped.handle, "") == once
        assert core.ended == [core.added[1].key]

    async def test_bc101_an_unknown_or_released_handle_is_not_found(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        await rig.engine.release_request(accepted.handle, "")
        for handle in (accepted.handle, accepted.handle + "0", "", "a/b", "e1//x", "x" * 1000):
            assert (await not_found(rig.engine.stop_request(handle, ""))).reason == "UNKNOWN_REQUEST"


class TestRelease:
    async def test_bc101_of_a_running_request_stops_it(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        await rig.engine.release_request(accepted.handle, "")
        assert core.ended == [rig.added().key]
        assert rig.engine.live_requests == 0
        await not_found(rig.sequence(accepted.handle))

    async def test_bc101_twice_or_of_an_unknown_handle_succeeds(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        for handle in (accepted.handle, accepted.handle, "", "nonsense", "e1/0123456789abcdef/0"):
            await rig.engine.release_request(handle, "")

    async def test_every_other_call_is_not_found_at_once(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        await rig.engine.release_request(accepted.handle, "")
        for call in (
            rig.engine.stop_request(accepted.handle, ""),
            rig.engine.sync_request(handle=accepted.handle),
            rig.engine.get_request(handle=accepted.handle, wait=600),
        ):
            await not_found(call)
        with pytest.raises(NotFound):
            rig.engine.read(accepted.handle, 0, 0, "")
        assert rig.engine.list_requests("")[0] == []

    async def test_the_engine_s_name_in_a_handle_is_not_looked_at(self, rig: Rig) -> None:
        """A gateway may know the engine by another name."""
        await rig.run()
        accepted = await rig.start()
        handle = "/".join(["other", *accepted.handle.split("/")[1:]])
        assert (await rig.sequence(handle)).status is GenerateStatus.INIT

    async def test_a_handle_of_another_start_of_the_engine_is_lost(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        await rig.engine.close()
        rig.new_engine()
        error = await not_found(rig.sequence(accepted.handle))
        assert (error.reason, error.metadata) == ("ENGINE_LOST", {"handle": accepted.handle})
        await rig.engine.release_request(accepted.handle, "")


class TestSync:
    async def test_waits_for_one_request(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, other = await rig.start(), await rig.start()
        call = asyncio.create_task(rig.engine.sync_request(handle=accepted.handle))
        await settle()
        assert (await rig.engine.get_request(handle=accepted.handle))[0].attached == 1
        core.step({core.added[0].key: 41})
        await settle()
        assert not call.done()
        core.step(ended={core.added[0].key: FinishReason.EOS})
        (view,) = await call
        assert view.request.handle == accepted.handle
        assert view.request.effective_config is None
        assert view.sequences[0].status is GenerateStatus.FINISHED
        assert (await rig.sequence(other.handle)).status is GenerateStatus.INIT

    async def test_of_an_ended_request_returns_at_once(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step(ended={rig.added().key: FinishReason.EOS})
        assert len(await rig.engine.sync_request(handle=accepted.handle)) == 1

    async def test_waits_for_all_earlier_requests_of_its_owner_to_a_model(self, rig: Rig) -> None:
        await rig.run("other")
        await rig.start(model_name="other", owner="me")
        core = await rig.run()
        mine = [await rig.start(owner="me") for _ in range(2)]
        await rig.start(owner="you")
        call = asyncio.create_task(rig.engine.sync_request(model_name=NAME, owner="me"))
        await settle()
        await rig.start(owner="me")
        keys = [added.key for added in core.added]
        core.step(ended={keys[0]: FinishReason.EOS})
        await settle()
        assert not call.done()
        core.step(ended={keys[1]: FinishReason.EOS})
        assert [view.request.handle for view in await call] == [accepted.handle for accepted in mine]

    async def test_a_request_released_during_a_model_sync_has_ended(self, rig: Rig) -> None:
        core = await rig.run()
        first = await rig.start()
        await rig.start()
        call = asyncio.create_task(rig.engine.sync_request(model_name=NAME))
        await settle()
        await rig.engine.release_request(first.handle, "")
        core.step(ended={core.added[1].key: FinishReason.EOS})
        assert [view.sequences[0].end is not None for view in await call] == [True, True]

    async def test_of_a_model_without_requests_returns_at_once(self, rig: Rig) -> None:
        await rig.install()
        assert await rig.engine.sync_request(model_name=NAME) == []

    async def test_an_unknown_model_is_not_found(self, rig: Rig) -> None:
        assert (await not_found(rig.engine.sync_request(model_name="none"))).reason == "UNKNOWN_MODEL"

    async def test_a_wait_that_is_cut_leaves_the_request_alone(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        call = asyncio.create_task(rig.engine.sync_request(handle=accepted.handle))
        await settle()
        call.cancel()
        await settle()
        assert core.ended == []
        assert (await rig.engine.get_request(handle=accepted.handle))[0].attached == 0
