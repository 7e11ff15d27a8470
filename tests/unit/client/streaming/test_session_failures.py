"""The session's state machine where engines are away, streams break, or servers are silent."""

from __future__ import annotations

import grpc
import pytest
from headrace import (
    EngineLostError,
    InternalServerError,
    InvalidRequestError,
    RequestReleasedError,
    RetryPolicy,
    UnavailableError,
)
from headrace_proto.v1 import session_pb2, status_pb2
from support.scripted.replies import Failure
from unit.client.streaming.session_rig import IDS, Rig, row


def refusal(code: grpc.StatusCode, reason: str = "", channel: int = 1) -> session_pb2.SessionResponse:
    """A failed attach."""
    status = Failure(code, "refused.", reason=reason).status()
    return session_pb2.SessionResponse(errors=[session_pb2.HandleError(channel=channel, status=status)])


def test_an_unreachable_engine_is_attached_again_elsewhere() -> None:
    rig = Rig(2)
    rig.attach()
    rig.session.receive(row(0, 5))
    rig.session.receive(refusal(grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE"))
    wait = rig.session.wait
    assert wait is not None
    assert wait <= RetryPolicy().first_delay
    rig.clock.advance(wait)
    assert [(one.channel, one.from_position) for one in rig.said().attach] == [(3, 5)]
    rig.session.receive(row(0, 5, channel=2))
    assert rig.read(1) == IDS[:5]


def test_an_engine_away_for_long_is_reported_and_retried() -> None:
    rig = Rig()
    for _ in range(40):
        channel = rig.said().attach[0].channel
        rig.session.receive(refusal(grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE", channel))
        rig.clock.advance(2.0)
    reader = rig.subscriptions[0].reader
    assert reader.ready
    with pytest.raises(UnavailableError), reader.reading():
        reader.take()
    assert not reader.over
    rig.attach()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST", RequestReleasedError),
        (grpc.StatusCode.NOT_FOUND, "ENGINE_LOST", EngineLostError),
        (grpc.StatusCode.OUT_OF_RANGE, "POSITION_OUT_OF_RANGE", InvalidRequestError),
        (grpc.StatusCode.INTERNAL, "ENGINE_FAULT", InternalServerError),
    ],
)
def test_other_refusals_end_one_reader_and_no_other(code: grpc.StatusCode, reason: str, kind: type[Exception]) -> None:
    rig = Rig(2)
    rig.attach()
    rig.session.receive(refusal(code, reason))
    with pytest.raises(kind):
        rig.read(0)
    assert rig.session.subscriptions == rig.subscriptions[1:]
    rig.session.receive(row(0, 5, channel=2))
    assert rig.read(1) == IDS[:5]


@pytest.mark.parametrize("damage", ["hole", "checksum", "attached"])
def test_damage_ends_one_reader_and_no_other(damage: str) -> None:
    rig = Rig(2)
    rig.attach()
    rig.session.receive(row(0, 5))
    message = row(6 if damage == "hole" else 5, 9)
    if damage == "checksum":
        message.step.checksums[0] ^= 1
    if damage == "attached":
        message = session_pb2.SessionResponse(attached=[session_pb2.Attached(channel=1, position=5, checksum=1)])
    rig.session.receive(message)
    assert rig.read(0) == IDS[:5]
    with pytest.raises(InternalServerError, match="damaged"):
        rig.read(0)
    assert list(rig.said().detach) == [1]
    rig.session.receive(row(0, 5, channel=2))
    assert rig.read(1) == IDS[:5]


def test_columns_that_do_not_fit_fail_the_stream_and_are_final() -> None:
    rig = Rig(2)
    rig.attach()
    message = row(0, 5)
    message.step.texts.append("more")
    with pytest.raises(InternalServerError, match="columns") as caught:
        rig.session.receive(message)
    assert rig.session.broken(caught.value) is None
    for number in range(2):
        with pytest.raises(InternalServerError) as caught:
            rig.read(number)
        assert caught.value.request_id == f"e/i/{number}"


def test_a_refused_session_fails_all_readers_and_is_retried() -> None:
    rig = Rig()
    status = status_pb2.Status(code=16, message="no key.")
    from headrace._values.wire_errors import error_from_status

    assert rig.session.broken(error_from_status(status)) is None
    with pytest.raises(Exception, match="no key"):
        rig.read()
    later = rig.subscribe("e/i/5")
    rig.session.open()
    assert [one.handle for one in rig.said().attach] == [later.handle]


def test_pings_go_out_and_a_silent_server_is_noticed() -> None:
    rig = Rig()
    rig.attach()
    opened = session_pb2.SessionOpened()
    opened.ping_interval.FromSeconds(4)
    opened.ping_timeout.FromSeconds(10)
    rig.session.receive(session_pb2.SessionResponse(opened=opened))
    rig.session.outgoing()
    for number in (1, 2):
        assert rig.session.wait == 4
        rig.clock.advance(4)
        assert rig.said().ping.number == number
        rig.session.receive(session_pb2.SessionResponse(pong=session_pb2.Pong(number=number)))
    for _ in range(2):
        rig.clock.advance(4)
        rig.said()
    assert not rig.session.silent
    assert rig.session.wait == 2
    rig.clock.advance(2)
    assert rig.session.silent


def test_readers_hear_of_a_long_outage_once_and_go_on() -> None:
    rig = Rig()
    for _ in range(40):
        assert rig.session.broken(UnavailableError("nobody there.")) is not None
        rig.clock.advance(1.0)
    with pytest.raises(UnavailableError, match="nobody there"):
        rig.read()
    assert rig.read() is None
    rig.session.open()
    rig.attach()
    rig.session.receive(row(0, 5))
    assert rig.read() == IDS[:5]
