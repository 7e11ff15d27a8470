"""Requests by handle and by the id of their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest
from headrace_engine.config import Lease
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.requests.registry import RequestBook
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.requests.start_keys import KEY_MEMORY, Key
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.text.detokenizer import Detokenizer
from headrace_engine.errors import AlreadyExists, InvalidArgument, NotFound
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import AcceptedRequest, ConfigWarning
from support.clocks.clock import FakeClock, settle
from support.engine.refusals import not_found

INSTANCE = "0123456789abcdef"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def book(clock: FakeClock) -> AsyncIterator[RequestBook]:
    book = RequestBook("e1", INSTANCE, clock)
    yield book
    book.close()


def add(
    book: RequestBook, request_id: str = "r1", *, owner: str = "", handover: int = 0, model: str = "smol"
) -> Request:
    accepted = AcceptedRequest(book.new_handle(), request_id, model, None, 0, 1, "", handover=handover)
    sequence = Sequence(0, 1, ResultLog(), Detokenizer(lambda token_id: b"", ()), SequenceTimes(0.0, 1))
    request = Request(owner, book.new_serial(), cast(Model, None), accepted, [sequence], book.leases)
    book.add(request)
    return request


async def test_a_handle_names_engine_and_instance_and_is_unguessable(book: RequestBook) -> None:
    engine, instance, number = book.new_handle().split("/")
    assert (engine, instance, len(number)) == ("e1", INSTANCE, 32)
    assert book.new_handle() != book.new_handle()


async def test_of_several_hand_overs_the_highest_answers(book: RequestBook) -> None:
    for handover in (0, 2, 1):
        add(book, handover=handover)
    assert book.find_by_id("r1", "").accepted.handover == 2


async def test_by_id_a_request_is_found_once_its_start_is_over(book: RequestBook) -> None:
    with book.keys.arriving("", "r1"):
        looking = asyncio.create_task(book.find_either(None, "r1", ""))
        elsewhere = [
            await not_found(book.find_either(None, "r1", "you")),
            await not_found(book.find_either(None, "r2", "")),
        ]
        assert {error.reason for error in elsewhere} == {"UNKNOWN_REQUEST"}
        answer = asyncio.get_running_loop().create_future()
        book.keys.begin(Key("", "r1", 0), b"", answer)
    await settle()
    assert not looking.done()
    request = add(book)
    answer.set_result(request.accepted)
    assert await looking is request


async def test_a_lookup_of_a_refused_start_learns_there_is_none(book: RequestBook) -> None:
    answer = asyncio.get_running_loop().create_future()
    book.keys.begin(Key("", "r1", 0), b"", answer)
    looking = asyncio.create_task(book.find_either(None, "r1", ""))
    await settle()
    answer.set_exception(InvalidArgument("no"))
    assert (await not_found(looking)).metadata == {}


async def test_a_released_requests_id_still_gives_its_handle(book: RequestBook, clock: FakeClock) -> None:
    for handover in (0, 1):
        request = add(book, handover=handover)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(request.accepted)
        book.keys.begin(Key("", "r1", handover), b"", answer)
        book.release(request)
    clock.advance(KEY_MEMORY)
    error = await not_found(book.find_either(None, "r1", ""))
    assert (error.reason, error.metadata) == ("UNKNOWN_REQUEST", {"handle": request.accepted.handle, "handover": "1"})
    clock.advance(1)
    assert (await not_found(book.find_either(None, "r1", ""))).metadata == {}
    assert len(book.keys) == 0


async def test_a_start_that_comes_again_after_release_is_told_so(book: RequestBook) -> None:
    """The first answer is remembered in every field, whatever was remembered before it."""
    config = GenerationConfig(temperature=0.5, stop_words_ids=((1, 2),), logit_bias={3: -1.5}, lease=Lease(1.0, 2.0))
    warning = ConfigWarning("temperature", "is low")
    for number, effective in enumerate((GenerationConfig(seed=2**64 - 1, stop_words=("é",)), config, None)):
        request = add(book, f"r{number}")
        accepted = replace(request.accepted, effective_config=effective, warnings=(warning,) * number, seed=7)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(accepted)
        book.keys.begin(Key("", f"r{number}", 0), b"content", answer)
        book.release(request)
        with pytest.raises(NotFound) as caught:
            book.keys.begun(Key("", f"r{number}", 0), b"content")
        assert caught.value.metadata == {"handle": accepted.handle, "handover": "0"}
        assert book.keys.latest("", f"r{number}") == accepted
        with pytest.raises(AlreadyExists):
            book.keys.begun(Key("", f"r{number}", 0), b"other")
    assert len(book.keys) == 3


async def test_requests_of_an_owner_come_in_order_of_arrival(book: RequestBook) -> None:
    mine = [add(book, f"r{number}", owner="me", model=f"m{number % 2}") for number in range(4)]
    add(book, owner="you")
    assert book.of_owner("me") == mine
    assert book.of_owner("me", "m1") == mine[1::2]
    assert [request.serial for request in mine] == sorted(request.serial for request in mine)


async def test_an_engine_s_name_may_hold_slashes() -> None:
    book = RequestBook("rack/e1", INSTANCE, FakeClock())
    request = add(book)
    assert book.find(request.accepted.handle, "") is request
    book.leases.close()


@pytest.mark.parametrize(
    "change", [str.upper, lambda handle: handle[:-1], lambda handle: handle + " ", lambda handle: ""]
)
async def test_what_is_no_handle_finds_nothing(book: RequestBook, change: object) -> None:
    assert callable(change)
    handle = change(add(book).accepted.handle)
    assert book.find_or_none(handle, "") is None
    with pytest.raises(NotFound) as caught:
        book.find(handle, "")
    assert caught.value.reason == "UNKNOWN_REQUEST"


async def test_a_handle_of_another_instance_is_lost_and_not_unknown(book: RequestBook) -> None:
    handle = add(book).accepted.handle.replace(INSTANCE, "f" * 16)
    with pytest.raises(NotFound, match="results with it; send the request again") as caught:
        book.find(handle, "")
    assert caught.value.reason == "ENGINE_LOST"


async def test_all_requests_are_listed_and_released_ones_are_gone(book: RequestBook) -> None:
    first, second = add(book), add(book)
    assert list(book) == [first, second]
    book.release(first)
    assert list(book) == [second]


async def test_a_request_has_the_sequences_it_has(book: RequestBook) -> None:
    request = add(book)
    assert request.sequence(0) is request.sequences[0]
    for index in (1, -1):
        with pytest.raises(NotFound, match="1 sequence"):
            request.sequence(index)
