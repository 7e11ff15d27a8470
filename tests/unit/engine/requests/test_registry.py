"""Requests by handle and by the id of their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest
from headrace_engine.characters.detokenizer import Detokenizer
from headrace_engine.config import Lease
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.requests.start_keys import KEY_MEMORY, Key
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes
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
async def registry(clock: FakeClock) -> AsyncIterator[RequestRegistry]:
    registry = RequestRegistry("e1", INSTANCE, clock)
    yield registry
    registry.close()


def add(
    registry: RequestRegistry, request_id: str = "r1", *, owner: str = "", handover: int = 0, model: str = "smol"
) -> Request:
    accepted = AcceptedRequest(registry.new_handle(), request_id, model, None, 0, 1, "", handover=handover)
    sequence = Sequence(0, 1, ResultLog(), Detokenizer(lambda token_id: b"", ()), SequenceTimes(0.0, 1))
    request = Request(owner, registry.new_serial(), cast(Model, None), accepted, [sequence], registry.leases)
    registry.add(request)
    return request


async def test_a_handle_names_engine_and_instance_and_is_unguessable(registry: RequestRegistry) -> None:
    engine, instance, number = registry.new_handle().split("/")
    assert (engine, instance, len(number)) == ("e1", INSTANCE, 32)
    assert registry.new_handle() != registry.new_handle()


async def test_of_several_hand_overs_the_highest_answers(registry: RequestRegistry) -> None:
    for handover in (0, 2, 1):
        add(registry, handover=handover)
    assert registry.find_by_id("r1", "").accepted.handover == 2


async def test_by_id_a_request_is_found_once_its_start_is_over(registry: RequestRegistry) -> None:
    with registry.keys.arriving("", "r1"):
        looking = asyncio.create_task(registry.find_either(None, "r1", ""))
        elsewhere = [
            await not_found(registry.find_either(None, "r1", "you")),
            await not_found(registry.find_either(None, "r2", "")),
        ]
        assert {error.reason for error in elsewhere} == {"UNKNOWN_REQUEST"}
        answer = asyncio.get_running_loop().create_future()
        registry.keys.begin(Key("", "r1", 0), b"", answer)
    await settle()
    assert not looking.done()
    request = add(registry)
    answer.set_result(request.accepted)
    assert await looking is request


async def test_a_lookup_of_a_refused_start_learns_there_is_none(registry: RequestRegistry) -> None:
    answer = asyncio.get_running_loop().create_future()
    registry.keys.begin(Key("", "r1", 0), b"", answer)
    looking = asyncio.create_task(registry.find_either(None, "r1", ""))
    await settle()
    answer.set_exception(InvalidArgument("no"))
    assert (await not_found(looking)).metadata == {}


async def test_a_released_requests_id_still_gives_its_handle(registry: RequestRegistry, clock: FakeClock) -> None:
    for handover in (0, 1):
        request = add(registry, handover=handover)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(request.accepted)
        registry.keys.begin(Key("", "r1", handover), b"", answer)
        registry.release(request)
    clock.advance(KEY_MEMORY)
    error = await not_found(registry.find_either(None, "r1", ""))
    assert (error.reason, error.metadata) == ("UNKNOWN_REQUEST", {"handle": request.accepted.handle, "handover": "1"})
    clock.advance(1)
    assert (await not_found(registry.find_either(None, "r1", ""))).metadata == {}
    assert len(registry.keys) == 0


async def test_a_start_that_comes_again_after_release_is_told_so(registry: RequestRegistry) -> None:
    """The first answer is remembered in every field, whatever was remembered before it."""
    config = GenerationConfig(temperature=0.5, stop_words_ids=((1, 2),), logit_bias={3: -1.5}, lease=Lease(1.0, 2.0))
    warning = ConfigWarning("temperature", "is low")
    for number, effective in enumerate((GenerationConfig(seed=2**64 - 1, stop_words=("é",)), config, None)):
        request = add(registry, f"r{number}")
        accepted = replace(request.accepted, effective_config=effective, warnings=(warning,) * number, seed=7)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(accepted)
        registry.keys.begin(Key("", f"r{number}", 0), b"content", answer)
        registry.release(request)
        with pytest.raises(NotFound) as caught:
            registry.keys.begun(Key("", f"r{number}", 0), b"content")
        assert caught.value.metadata == {"handle": accepted.handle, "handover": "0"}
        assert registry.keys.latest("", f"r{number}") == accepted
        with pytest.raises(AlreadyExists):
            registry.keys.begun(Key("", f"r{number}", 0), b"other")
    assert len(registry.keys) == 3


async def test_requests_of_an_owner_come_in_order_of_arrival(registry: RequestRegistry) -> None:
    mine = [add(registry, f"r{number}", owner="me", model=f"m{number % 2}") for number in range(4)]
    add(registry, owner="you")
    assert registry.of_owner("me") == mine
    assert registry.of_owner("me", "m1") == mine[1::2]
    assert [request.serial for request in mine] == sorted(request.serial for request in mine)


async def test_an_engine_s_name_may_hold_slashes() -> None:
    registry = RequestRegistry("rack/e1", INSTANCE, FakeClock())
    request = add(registry)
    assert registry.find(request.accepted.handle, "") is request
    registry.leases.close()


@pytest.mark.parametrize(
    "change", [str.upper, lambda handle: handle[:-1], lambda handle: handle + " ", lambda handle: ""]
)
async def test_what_is_no_handle_finds_nothing(registry: RequestRegistry, change: object) -> None:
    assert callable(change)
    handle = change(add(registry).accepted.handle)
    assert registry.find_or_none(handle, "") is None
    with pytest.raises(NotFound) as caught:
        registry.find(handle, "")
    assert caught.value.reason == "UNKNOWN_REQUEST"


async def test_a_handle_of_another_instance_is_lost_and_not_unknown(registry: RequestRegistry) -> None:
    handle = add(registry).accepted.handle.replace(INSTANCE, "f" * 16)
    with pytest.raises(NotFound, match="results with it; send the request again") as caught:
        registry.find(handle, "")
    assert caught.value.reason == "ENGINE_LOST"


async def test_all_requests_are_listed_and_released_ones_are_gone(registry: RequestRegistry) -> None:
    first, second = add(registry), add(registry)
    assert list(registry) == [first, second]
    registry.release(first)
    assert list(registry) == [second]


async def test_a_request_has_the_sequences_it_has(registry: RequestRegistry) -> None:
    request = add(registry)
    assert request.sequence(0) is request.sequences[0]
    for index in (1, -1):
        with pytest.raises(NotFound, match="1 sequence"):
            request.sequence(index)
