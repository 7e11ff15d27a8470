"""Sessions over gRPC: questions and answers in order, cancelled ones, and servers that are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from headrace._transport import transport as seam
from headrace._transport.methods import CONVERSATIONS
from headrace_proto.v1 import session_pb2
from headrace_proto.wire.transport import CallError, SessionTransport
from support.clocks.waiting import LIMIT
from unit.client.transport.test_transport import SESSION, threadpool


def talking_server(talk: Any) -> tuple[grpc.Server, int]:
    """A server whose session is this function of questions and context."""
    method = CONVERSATIONS[SESSION]
    handler = grpc.stream_stream_rpc_method_handler(
        talk, request_deserializer=method.request.FromString, response_serializer=method.response.SerializeToString
    )
    server = grpc.server(threadpool(), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("headrace.v1.RequestService", {"Session": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def session_transport(addresses: str) -> SessionTransport:
    """What carries sessions over gRPC."""
    made = seam.open_transport(addresses, {})
    assert isinstance(made, SessionTransport)
    return made


def pong(number: int) -> session_pb2.SessionResponse:
    """The answer to a ping."""
    return session_pb2.SessionResponse(pong=session_pb2.Pong(number=number))


def ping(number: int) -> session_pb2.SessionRequest:
    """A question."""
    return session_pb2.SessionRequest(ping=session_pb2.Ping(number=number))


def test_a_session_carries_messages_in_order_until_both_end() -> None:
    def talk(questions: Iterator[Any], context: Any) -> Iterator[Any]:
        for question in questions:
            yield pong(question.ping.number)
        yield pong(99)

    server, port = talking_server(talk)
    made = session_transport(f"127.0.0.1:{port}")
    channel = made.session(SESSION)
    channel.send(ping(1))
    assert next(channel).pong.number == 1
    senders = [threading.Thread(target=channel.send, args=(ping(2),)) for _ in range(8)]
    for sender in senders:
        sender.start()
    assert [next(channel).pong.number for _ in senders] == [2] * 8
    channel.half_close()
    channel.half_close()
    assert [answer.pong.number for answer in channel] == [99]
    channel.send(ping(3))
    channel.cancel()
    made.close()
    server.stop(None).wait()


def test_a_cancelled_session_fails_and_leaves_no_thread_behind() -> None:
    asked, gone = threading.Event(), threading.Event()

    def talk(questions: Iterator[Any], context: Any) -> Iterator[Any]:
        context.add_callback(gone.set)
        next(questions)
        asked.set()
        gone.wait(LIMIT)
        yield pong(1)

    before = set(threading.enumerate())
    server, port = talking_server(talk)
    made = session_transport(f"127.0.0.1:{port}")
    channel = made.session(SESSION)
    channel.send(ping(1))
    assert asked.wait(LIMIT)
    channel.cancel()
    channel.cancel()
    with pytest.raises(CallError) as caught:
        next(channel)
    assert caught.value.status.code == 1
    assert gone.wait(LIMIT)
    for thread in set(threading.enumerate()) - before:
        if "consume_request_iterator" in thread.name:
            thread.join(LIMIT)
            assert not thread.is_alive()
    made.close()
    server.stop(None).wait()
    with pytest.raises(CallError, match="closed"):
        made.session(SESSION)


@pytest.mark.parametrize("attempt", range(5))
def test_a_session_to_a_lost_server_is_followed_by_another(attempt: int) -> None:
    """Also where a session begins just as its connection breaks, which gRPC's own retries did not survive."""

    def talk(number: int) -> Any:
        def answer(questions: Iterator[Any], context: Any) -> Iterator[Any]:
            yield pong(number)
            yield from (pong(question.ping.number) for question in questions)

        return answer

    servers = [talking_server(talk(number)) for number in (1, 2)]
    made = session_transport(",".join(f"127.0.0.1:{port}" for _, port in servers))
    found = []
    for lost in (False, True, False):
        channel = made.session(SESSION)
        found.append(next(channel).pong.number)
        channel.cancel(lost=lost)
    servers[1][0].stop(None).wait()
    with pytest.raises(CallError, match="no answer"):
        next(made.session(SESSION))
    found.append(next(made.session(SESSION)).pong.number)
    assert found == [1, 1, 2, 1]
    made.close()
    servers[0][0].stop(None).wait()
