"""Starts with the same key: what they meet, what they join, and how long a key is remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from headrace_engine.engine.requests import awaited_starts
from headrace_engine.engine.requests.awaited_starts import AwaitedStarts
from headrace_engine.engine.requests.start_keys import KEY_MEMORY
from headrace_engine.engine.work.pools import INLINE_SIZE
from headrace_engine.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
)
from headrace_engine.request_types import AcceptedRequest, StartRequest
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.clocks.waiting import happens
from support.engine.refusals import not_found
from support.engine.rig import Rig
from support.engine.tokenising import LONG, Tokenising, run_wide


class TestKeys:
    async def start(self, rig: Rig, **fields: Any) -> AcceptedRequest:
        return await rig.start(**{"request_id": "r1", "content": b"same", **fields})

    async def test_the_same_key_and_content_start_one_request(self, rig: Rig) -> None:
        core = await rig.run()
        first, again = await self.start(rig), await self.start(rig)
        assert (first.joined, again.joined) == (False, True)
        assert (again.handle, again.seed) == (first.handle, first.seed)
        assert len(core.added) == 1

    async def test_the_same_key_with_other_content_is_refused(self, rig: Rig) -> None:
        core = await rig.run()
        await self.start(rig)
        with pytest.raises(AlreadyExists) as caught:
            await self.start(rig, content=b"other")
        assert caught.value.reason == "REQUEST_ID_REUSED"
        assert len(core.added) == 1

    async def test_owners_have_keys_of_their_own(self, rig: Rig) -> None:
        core = await rig.run()
        handles = {(await self.start(rig, owner=owner)).handle for owner in ("", "me", "you")}
        assert (len(handles), len(core.added)) == (3, 3)

    async def test_an_empty_id_starts_anew_each_time(self, rig: Rig) -> None:
        core = await rig.run()
        handles = {(await self.start(rig, request_id="")).handle for _ in range(2)}
        assert (len(handles), len(core.added)) == (2, 2)

    async def test_a_refused_start_leaves_its_key_free(self, rig: Rig) -> None:
        core = await rig.run()
        with pytest.raises(InvalidArgument):
            await self.start(rig, prompt=())
        await settle()
        assert not (await self.start(rig, content=b"mended")).joined
        assert len(core.added) == 1

    async def test_a_retry_after_the_end_finds_it_too(self, rig: Rig) -> None:
        core = await rig.run()
        first = await self.start(rig)
        core.step(ended={rig.added().key: FinishReason.EOS})
        assert (await self.start(rig)).handle == first.handle

    async def test_a_key_is_remembered_until_ten_minutes_after_release(self, rig: Rig) -> None:
        core = await rig.run()
        first = await self.start(rig)
        rig.clock.advance(10 * KEY_MEMORY)
        assert (await self.start(rig)).handle == first.handle
        await rig.engine.release_request(first.handle, "")
        rig.clock.advance(KEY_MEMORY)
        error = await not_found(self.start(rig))
        assert (error.reason, error.metadata["handle"]) == ("UNKNOWN_REQUEST", first.handle)
        with pytest.raises(AlreadyExists):
            await self.start(rig, content=b"other")
        rig.clock.advance(0.001)
        anew = await self.start(rig, content=b"other")
        assert not anew.joined
        assert anew.handle != first.handle
        assert len(core.added) == 2

    async def test_f7_of_a_large_released_start_no_config_is_kept(self, rig: Rig) -> None:
        """Its request is gone; the digest of its content tells it from another."""
        await rig.run()
        config = {"bad_words_ids": tuple((n % 100, n // 100, *range(14)) for n in range(4096))}
        first = await self.start(rig, config=config)
        assert await self.start(rig, config=config) == replace(first, joined=True)
        await rig.engine.release_request(first.handle, "")
        assert (await not_found(self.start(rig, config=config))).metadata["handle"] == first.handle
        remembered = rig.engine._registry.keys.latest("", first.request_id)
        assert remembered == replace(first, effective_config=None, warnings=())
        with pytest.raises(AlreadyExists):
            await self.start(rig, config=config, content=b"other")

    async def test_forgetting_one_key_forgets_no_later_one(self, rig: Rig) -> None:
        await rig.run()
        first = await self.start(rig)
        await rig.engine.release_request(first.handle, "")
        rig.clock.advance(KEY_MEMORY + 1)
        second = await self.start(rig)
        rig.clock.advance(KEY_MEMORY + 1)
        assert (await self.start(rig)).handle == second.handle

    async def test_a_retry_joins_a_start_in_progress(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig)
        starts = [asyncio.create_task(self.start(rig, prompt=LONG)) for _ in range(3)]
        await settle()
        assert not any(start.done() for start in starts)
        with pytest.raises(AlreadyExists):
            await self.start(rig, content=b"other")
        tokenising.go()
        accepted = await asyncio.gather(*starts)
        assert [each.joined for each in accepted] == [False, True, True]
        assert len({each.handle for each in accepted}) == len(core.added) == 1

    async def test_a_retry_that_is_cut_leaves_the_start_it_joined_going(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig)
        first, retry = (asyncio.create_task(self.start(rig, prompt=LONG)) for _ in range(2))
        await settle()
        retry.cancel()
        await settle()
        tokenising.go()
        assert not (await first).joined
        assert retry.cancelled()
        assert len(core.added) == 1

    async def test_those_who_joined_a_start_learn_why_it_was_refused(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig)
        config = {"temperature": -1.0}
        starts = [asyncio.create_task(self.start(rig, prompt=LONG, config=config)) for _ in range(2)]
        await settle()
        tokenising.go()
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [InvalidArgument] * 2
        assert core.added == []

    async def test_a_cut_start_goes_on_and_its_retry_finds_the_request(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig)
        start = asyncio.create_task(self.start(rig, prompt=LONG))
        await settle()
        start.cancel()
        await settle()
        assert start.cancelled()
        retry = asyncio.create_task(self.start(rig, prompt=LONG))
        await settle()
        tokenising.go()
        accepted = await retry
        assert accepted.joined
        assert len(core.added) == 1

    async def test_a_cut_start_that_nobody_retries_runs(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig)
        start = asyncio.create_task(self.start(rig, prompt=LONG))
        await settle()
        start.cancel()
        await settle()
        tokenising.go()
        await happens(core.commanded, "the start is not sent")
        view, _ = await rig.engine.get_request(request_id="r1")
        assert view.sequences[0].status is GenerateStatus.INIT

    async def test_f8_a_cut_start_is_given_up_when_no_retry_comes(
        self, rig: Rig, tokenising: Tokenising, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not begun where it still waits, and its key is free for a start with other content."""
        monkeypatch.setattr(awaited_starts, "RETRY_TIME", 0.01)
        core = await run_wide(rig)
        start = asyncio.create_task(self.start(rig, prompt=LONG))
        await settle()
        start.cancel()
        with pytest.raises(NotFound):  # It waits for what becomes of the start.
            await rig.engine.get_request(request_id="r1")
        tokenising.go()
        assert not (await self.start(rig, content=b"other")).joined
        assert len(core.added) == 1

    async def test_f8_a_retry_during_giving_up_starts_anew(
        self, rig: Rig, tokenising: Tokenising, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the same turn of the event loop, before the key is free."""
        monkeypatch.setattr(awaited_starts, "RETRY_TIME", 0.01)
        give_up, came, retries = AwaitedStarts._give_up, asyncio.Event(), []

        def give_up_and_retry(self_: AwaitedStarts, start: asyncio.Future[Any]) -> None:
            retries.append(asyncio.create_task(self.start(rig, prompt=LONG)))
            give_up(self_, start)
            retries.append(asyncio.create_task(self.start(rig, prompt=LONG)))
            came.set()

        monkeypatch.setattr(AwaitedStarts, "_give_up", give_up_and_retry)
        core = await run_wide(rig)
        start = asyncio.create_task(self.start(rig, prompt=LONG))
        await settle()
        start.cancel()
        await happens(came, "the start is not given up")
        tokenising.go()
        assert sorted([(await retry).joined for retry in retries]) == [False, True]
        assert len(core.added) == 1

    async def test_f8_a_cut_start_goes_on_while_somebody_else_waits_for_it(
        self, rig: Rig, tokenising: Tokenising, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(awaited_starts, "RETRY_TIME", 0.0)
        await run_wide(rig)
        first, second = (asyncio.create_task(self.start(rig, prompt=LONG)) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        tokenising.go()
        assert (await second).joined

    async def test_a_start_without_an_id_that_is_cut_starts_nothing(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig)
        start = asyncio.create_task(rig.start(LONG))
        await settle()
        start.cancel()
        tokenising.go()
        await asyncio.wait([start])
        await rig.start("x" * (INLINE_SIZE + 1))  # another turn of the threads
        assert start.cancelled()
        assert len(core.added) == 1

    async def test_a_cut_start_that_is_refused_leaves_its_key_free(self, rig: Rig, tokenising: Tokenising) -> None:
        await run_wide(rig)
        config = {"temperature": -1.0}
        start = asyncio.create_task(self.start(rig, prompt=LONG, config=config))
        await settle()
        start.cancel()
        tokenising.go()
        with pytest.raises(InvalidArgument):
            await self.start(rig, prompt=LONG, config=config)
        await settle()
        assert not (await self.start(rig, content=b"other")).joined


async def test_a_request_to_a_name_that_never_was_leaves_its_key_free(rig: Rig) -> None:
    request = StartRequest("none", (5,), request_id="r1", content=b"1")
    with pytest.raises(NotFound):
        await rig.engine.start_request(request)
    await settle()
    await rig.run()
    assert not (await rig.start(request_id="r1", content=b"2")).joined
