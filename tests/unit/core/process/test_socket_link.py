"""The core's end of its socket: what comes together, in pieces, and last."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from headrace_engine.core.link import LinkClosed
from headrace_engine.ipc.commands import EndSequence, Ping
from headrace_engine.ipc.frames import FrameReader, frame
from headrace_engine.ipc.messages import Pong
from headrace_engine.process.child import SocketLink
from support.clocks.waiting import LIMIT
from support.core.simulated import make_plan


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, SocketLink]]:
    front, core = socket.socketpair()
    with front, core:
        yield front, SocketLink(core)


def test_commands_that_come_with_the_plan_are_kept(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    front.sendall(frame(make_plan()) + frame(Ping(1)) + frame(Ping(2)))
    assert link.receive_plan() == make_plan()
    assert link.receive(block=True) == [Ping(1), Ping(2)]
    assert link.receive(block=False) == []


def test_a_first_message_that_is_no_plan_is_refused(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    front.sendall(frame(Ping(1)))
    with pytest.raises(ValueError, match="must be its plan, not Ping"):
        link.receive_plan()


def test_the_end_comes_after_everything_that_was_sent(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    front.sendall(frame(Ping(1)) + frame(Ping(2)))
    front.close()
    assert link.receive(block=True) == [Ping(1), Ping(2)]
    with pytest.raises(LinkClosed):
        link.receive(block=True)
    with pytest.raises(LinkClosed):
        link.receive(block=False)
    with pytest.raises(LinkClosed):
        link.send(Pong(1))


def test_half_a_message_is_none_yet(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    data = frame(Ping(1))
    front.sendall(data[:3])
    assert link.receive(block=False) == []
    front.sendall(data[3:])
    assert link.receive(block=True) == [Ping(1)]


def test_half_a_message_at_the_end_is_dropped(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    front.sendall(frame(Ping(1))[:5])
    front.close()
    with pytest.raises(LinkClosed):
        link.receive(block=True)


def test_a2_pings_are_answered_during_a_step_in_order(
    pair: tuple[socket.socket, SocketLink],
) -> None:
    front, link = pair
    front.sendall(frame(EndSequence(1)) + frame(Ping(1)) + frame(EndSequence(2)) + frame(Ping(2))[:3])
    link.answer(40)
    link.answer(41)
    front.sendall(frame(Ping(2))[3:] + frame(EndSequence(3)))
    link.answer(42)
    answers = FrameReader()
    pongs: list[object] = []
    while len(pongs) < 2:
        pongs += answers.feed(front.recv(1 << 16))
    assert pongs == [Pong(1, 40), Pong(2, 42)]
    assert link.receive(block=True) == [EndSequence(1), EndSequence(2), EndSequence(3)]


def test_nobody_else_answers_while_the_core_itself_listens(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    received: list[object] = []
    listening = threading.Thread(target=lambda: received.extend(link.receive(block=True)))
    listening.start()
    while not link._reading.locked():
        pass
    link.answer(40)
    front.sendall(frame(Ping(1)))
    listening.join(LIMIT)
    assert received == [Ping(1)]


def test_the_end_is_left_to_the_core_s_own_thread(pair: tuple[socket.socket, SocketLink]) -> None:
    front, link = pair
    front.sendall(frame(EndSequence(1)))
    front.close()
    link.answer(40)
    assert link.receive(block=True) == [EndSequence(1)]
    with pytest.raises(LinkClosed):
        link.receive(block=True)


def test_a_link_that_was_cut_sends_and_receives_no_more(pair: tuple[socket.socket, SocketLink]) -> None:
    """A thread waits for a command when another cuts it off."""
    front, link = pair
    ended = threading.Event()

    def receive() -> None:
        with pytest.raises(LinkClosed):
            link.receive(block=True)
        ended.set()

    thread = threading.Thread(target=receive)
    thread.start()
    link.cut()
    assert ended.wait(LIMIT)
    thread.join()
    link.send(Pong(1))
    assert list(FrameReader().feed(front.recv(100))) == [Pong(1)]
