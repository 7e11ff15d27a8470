"""Somebody with a queue, for tests of sessions without input or output."""

from __future__ import annotations

import contextlib

from headrace import UnavailableError
from headrace._base.retry import RetryPolicy
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession
from headrace._streaming.subscription import Subscription
from support.clocks.client_clock import FakeClock

WINDOW = 8


class Caller:
    """Somebody with a queue: reads now and then, and may be in the middle of a Get."""

    def __init__(self, session: ClientSession, clock: FakeClock, handle: str) -> None:
        self.session = session
        self.reader = SequenceReader()
        self.subscription = Subscription(
            self.reader,
            Recovery(RetryPolicy(give_up_after=1e9), clock),
            handle=handle,
            index=0,
            request_id=handle,
            changed=self.look,
            fallback=lambda: None,
            window=WINDOW,
        )
        self.ids: list[int] = []
        self.text = ""
        self.waits: contextlib.ExitStack | None = None
        self.gone = False
        session.add(self.subscription)

    def read(self) -> None:
        """A read that does not wait for tokens that are still to be produced."""
        if self.waits is None and not self.gone:
            self.begin_get()
            if self.waits is not None and not self.reader.fetching:
                self.finish()

    def begin_get(self) -> None:
        """A Get, which ends once something is there."""
        if self.waits is None and not self.gone:
            self.waits = contextlib.ExitStack()
            self.waits.enter_context(self.reader.reading())
            self.session.moved(self.subscription)
            self.look()

    def get_again(self) -> bool:
        """Whether one more Get began."""
        if self.gone or self.waits is not None or self.reader.settled:
            return False
        self.begin_get()
        return True

    def look(self) -> None:
        """Something changed."""
        if self.waits is not None and self.reader.ready:
            self.finish()

    def finish(self) -> None:
        """The Get ends."""
        assert self.waits is not None
        with self.waits:
            with contextlib.suppress(UnavailableError):
                elements = self.reader.take()
                if elements is not None:
                    assert elements.position == len(self.ids)
                    self.ids += elements.ids_from_generate
                    self.text += elements.text
            self.session.moved(self.subscription)
        self.waits = None

    def drop(self) -> None:
        """The queue is dropped."""
        self.gone = True
        self.reader.close()
        self.session.moved(self.subscription)
