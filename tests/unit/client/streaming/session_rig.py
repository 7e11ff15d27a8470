"""A session whose server is the test."""

from __future__ import annotations

from headrace import (
    RetryPolicy,
)
from headrace._streaming.reader import SequenceReader
from headrace._streaming.reads import WINDOW
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession
from headrace._streaming.subscription import Subscription
from headrace_proto.v1 import session_pb2
from support.clocks.client_clock import FakeClock
from support.scripted.wire_samples import crc, text_of

IDS = list(range(3 * WINDOW))


class Rig:
    """A session with readers, and what it said."""

    def __init__(self, count: int = 1) -> None:
        self.clock = FakeClock()
        self.session = ClientSession(Recovery(RetryPolicy(), self.clock), self.clock, owner="ann", client="test 1")
        self.changes = 0
        self.subscriptions = [self.subscribe(f"e/i/{number}") for number in range(count)]
        self.session.open()

    def subscribe(self, handle: str, position: int = 0) -> Subscription:
        """One more reader."""
        subscription = Subscription(
            SequenceReader(position, handle),
            Recovery(RetryPolicy(), self.clock),
            handle=handle,
            index=0,
            request_id=handle,
            changed=self.count,
            fallback=lambda: None,
        )
        self.session.add(subscription)
        return subscription

    def count(self) -> None:
        """Something changed."""
        self.changes += 1

    def said(self) -> session_pb2.SessionRequest:
        """What is said now."""
        message = self.session.outgoing()
        assert message is not None
        return message

    def attach(self, position: int = 0) -> None:
        """Says what is to be said, and answers all attaches."""
        for one in self.said().attach:
            fact = session_pb2.Attached(
                channel=one.channel, position=one.from_position, checksum=crc(IDS[: one.from_position])
            )
            self.session.receive(session_pb2.SessionResponse(attached=[fact]))

    def read(self, number: int = 0) -> list[int] | None:
        """What one reads without waiting."""
        reader = self.subscriptions[number].reader
        with reader.reading():
            found = reader.take()
        self.session.moved(self.subscriptions[number])
        return found.ids_from_generate if found is not None else None


def row(begin: int, end: int, channel: int = 1) -> session_pb2.SessionResponse:
    """Tokens of one channel."""
    return session_pb2.SessionResponse(
        step=session_pb2.StepBatch(
            channels=[channel],
            positions=[begin],
            counts=[end - begin],
            token_ids=IDS[begin:end],
            texts=[text_of(IDS[begin:end])],
            checksums=[crc(IDS[:end])],
        )
    )
