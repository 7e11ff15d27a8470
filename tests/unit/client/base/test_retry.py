"""Calls that fail: tried again where that is safe and makes sense, under one id, as long as time allows."""

from __future__ import annotations

import logging
import math
import re
from functools import partial
from typing import Any

import grpc
import pytest
from headrace import (
    Client,
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    OverloadedError,
    RetryPolicy,
    StateError,
    UnavailableError,
)
from headrace._base.retry import retry_delay, should_retry
from headrace_proto.v1 import engine_service_pb2, model_service_pb2
from hypothesis import given
from hypothesis import strategies as st
from support.clocks.client_clock import FakeClock
from support.logged import logged
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended

DOWN = Failure(grpc.StatusCode.UNAVAILABLE, "the engine is restarting its core.", reason="CORE_RESTARTING")
FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "256 requests wait.", reason="QUEUE_FULL", retry_after=1.25)
INFO = engine_service_pb2.GetServerInfoResponse(name="e1")


def test_a_lost_start_is_sent_again_with_the_next_attempt(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", DOWN, DOWN, accepted())
    server.expect("GeneratedElements", [ended([])])
    client.start_request("smol", "Hello")[1].Get()
    sent = server.requests("StartRequest")
    assert [request.attempt for request in sent] == [0, 1, 2]
    assert len({request.request_id for request in sent}) == 1
    assert len(sent[0].request_id) == 36
    assert all(request.text == "Hello" for request in sent)


def test_a_request_id_of_the_callers_is_sent_as_it_is(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [ended([])])
    client.start_request("smol", "Hello", request_id="mine")[1].Get()
    assert server.requests("StartRequest")[0].request_id == "mine"


def test_a_start_with_the_callers_id_is_looked_for_like_a_retry(client: Client, server: ScriptedServer) -> None:
    """It may have been sent before; a gateway with several engines asks them all only where `attempt` is above 0."""
    server.expect("StartRequest", DOWN, accepted())
    server.expect("GeneratedElements", [ended([])])
    client.start_request("smol", "Hello", request_id="mine")[1].Get()
    assert [request.attempt for request in server.requests("StartRequest")] == [1, 2]


def test_every_start_draws_an_id_of_its_own(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [ended([])], [ended([])])
    for _ in range(2):
        client.start_request("smol", "Hello")[1].Get()
    assert len({request.request_id for request in server.requests("StartRequest")}) == 2


def test_the_servers_delay_wins(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    later = Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=7.5)
    server.expect("GetServerInfo", later, later, INFO)
    client.server_info()
    assert clock.slept == [7.5, 7.5]


def test_without_one_delays_are_random_up_to_a_growing_bound(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    server.expect("GetServerInfo", *[DOWN] * 9, INFO)
    client.server_info()
    bounds = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert all(0 <= pause <= bound for pause, bound in zip(clock.slept, bounds, strict=True))
    assert len(set(clock.slept)) == len(clock.slept)


def test_overload_is_raised_with_its_delay_and_not_retried(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", FULL)
    with pytest.raises(OverloadedError, match="256 requests wait") as caught:
        client.start_request("smol", "Hello")
    assert caught.value.retry_after == 1.25
    assert caught.value.reason == "QUEUE_FULL"


def test_overload_is_tried_again_where_the_policy_says_so(server: ScriptedServer, clock: FakeClock) -> None:
    with Client(server.address, clock=clock, retry=RetryPolicy(retry_overload=True)) as client:
        server.expect("GetServerInfo", FULL, INFO)
        assert client.server_info().name == "e1"
    assert clock.slept == [1.25]


def test_what_cannot_succeed_is_not_tried_again(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    server.expect("StartRequest", Failure(grpc.StatusCode.FAILED_PRECONDITION, reason="MODEL_NOT_RUNNING"))
    with pytest.raises(StateError):
        client.start_request("smol", "Hello")
    assert clock.slept == []


def test_the_callers_timeout_bounds_all_attempts(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    later = Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=4.0)
    server.expect("GetServerInfo", later, later, later)
    begin = clock.now
    with pytest.raises(UnavailableError) as caught:
        client.server_info(timeout=10)
    assert caught.value.reason == "NO_ENGINE"
    assert clock.now - begin == 8.0


def test_without_a_timeout_it_gives_up_after_the_policys_time(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    later = Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=9.0)
    server.expect("StartModel", *[later] * 4)
    with pytest.raises(UnavailableError):
        client.start_model("smol")
    assert clock.slept == [9.0] * 3


@pytest.mark.parametrize("timeout", [math.inf, 1e30, 10**400, 1e9], ids=["inf", "1e30", "10**400", "1e9"])
def test_a_timeout_beyond_all_bounds_is_none(client: Client, server: ScriptedServer, timeout: float) -> None:
    server.expect("GetServerInfo", INFO)
    client.server_info(timeout=timeout)


@pytest.mark.parametrize("timeout", [math.nan, "5", True, [1]])
def test_a_timeout_that_is_no_number_is_refused(client: Client, timeout: Any) -> None:
    words = rf"timeout = {re.escape(repr(timeout))}: must be a number of seconds, or None"
    for call in (client.list_requests, partial(client.get_request, "h", wait=1), partial(client.sync_request, "h")):
        with pytest.raises(InvalidRequestError, match=words):
            call(timeout=timeout)
    with pytest.raises(InvalidRequestError, match=words):
        Client("localhost:1", timeout=timeout)


def test_a_model_verb_that_is_cut_joins_the_work_again(client: Client, server: ScriptedServer) -> None:
    server.expect("StartModel", DOWN, model_service_pb2.StartModelResponse())
    assert client.start_model("smol") == []
    assert len(server.requests("StartModel")) == 2


def test_an_answer_that_does_not_come_is_a_timeout_error(server: ScriptedServer) -> None:
    with Client(server.address) as client:
        server.hold("GetServerInfo")
        with pytest.raises(TimeoutError) as caught:
            client.server_info(timeout=0.05)
        assert isinstance(caught.value, DeadlineError)
        assert f"no answer from {server.address} in time" in str(caught.value)
        server.expect("ListModels", model_service_pb2.ListModelsResponse())
        client.list_models()


def test_waiting_for_a_server_is_logged_once(
    client: Client, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("GetServerInfo", DOWN, DOWN, INFO)
    with caplog.at_level(logging.WARNING):
        client.server_info()
    assert logged(caplog) == ["the engine is restarting its core. [CORE_RESTARTING] Trying again for up to 30 s."]


def test_a_switch_to_another_address_is_logged(
    server: ScriptedServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("GetServerInfo", INFO)
    with Client(f"127.0.0.1:1,{server.address}", clock=clock) as client:
        client.server_info()
    [text] = logged(caplog)
    assert re.fullmatch(rf"no answer from 127\.0\.0\.1:1: .*; using {server.address} instead", text)


def test_unanswering_addresses_are_listed_with_the_time_left(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Client("127.0.0.1:1,127.0.0.1:2", clock=clock) as client, pytest.raises(UnavailableError):
        client.server_info()
    first, second = logged(caplog)
    assert first.endswith("; using 127.0.0.1:2 instead")
    assert re.search(r"127\.0\.0\.1:2: .* Trying again for up to \d+ s\.$", second)


def test_an_unreachable_server_is_named_by_its_address() -> None:
    clock = FakeClock()
    with (
        Client("127.0.0.1:1", clock=clock) as client,
        pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1") as caught,
    ):
        client.server_info()
    assert caught.value.reason == "UNAVAILABLE"


def test_the_next_server_is_used_when_one_cannot_be_reached(server: ScriptedServer, clock: FakeClock) -> None:
    server.expect("GetServerInfo", INFO, INFO)
    with Client(f"127.0.0.1:1,{server.address}", clock=clock) as client:
        assert client.server_info().name == "e1"
        assert len(clock.slept) == 1
        assert client.server_info().name == "e1"
        assert len(clock.slept) == 1


def test_a_queue_moves_to_another_gateway_when_its_own_goes(server: ScriptedServer) -> None:
    from support.scripted.wire_samples import tokens

    ids = list(range(10))
    other = ScriptedServer().start()
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens(ids, 0, 4), Hang()])
    other.expect("GeneratedElements", [tokens(ids, 4), ended(ids)])
    with Client(f"{server.address},{other.address}") as client:
        _, queue = client.start_request("smol", "Hello")
        assert queue.Get().ids_from_generate == ids[:4]
        server.stop()
        assert [token for one in queue for token in one.ids_from_generate] == ids[4:]
        from headrace_proto.v1 import request_service_pb2

        other.expect("ReleaseRequest", request_service_pb2.ReleaseRequestResponse())
    other.stop()
    other.check()


@given(
    retry_after=st.one_of(st.none(), st.floats(0.001, 1e6)),
    failures=st.integers(1, 10_000),
    first=st.floats(0.001, 10),
    most=st.floats(0.001, 100),
)
def test_delays(retry_after: float | None, failures: int, first: float, most: float) -> None:
    policy = RetryPolicy(first_delay=first, max_delay=most)
    delay = retry_delay(UnavailableError("away.", retry_after=retry_after), policy, failures)
    if retry_after is not None:
        assert delay == retry_after
    else:
        assert 0 <= delay <= most


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UnavailableError("away."), True),
        (UnavailableError("closed.", reason="CLIENT_CLOSED"), False),
        (OverloadedError("full.", retry_after=1.0), False),
        (DeadlineError("late."), False),
        (HeadraceError("unknown."), False),
    ],
)
def test_decisions(error: HeadraceError, again: bool) -> None:
    assert should_retry(error, RetryPolicy()) is again
    assert should_retry(error, RetryPolicy(), idempotent=False) is False


def test_overload_without_a_time_is_never_tried_again() -> None:
    assert not should_retry(OverloadedError("full."), RetryPolicy(retry_overload=True))
