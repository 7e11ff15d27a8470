"""A request that another engine can continue, without I/O: what it is sent, and what follows from its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire

from headrace._base.retry import Time
from headrace._streaming.feed import BaseFeed
from headrace._streaming.reader import SequenceReader
from headrace.errors import EngineLostError, HeadraceError, InternalServerError

MOST_LOSSES = 3
"""Engines that a request may lose before it ends: one that brings its engines down must not bring all of them down."""

MOST_DRAINS = 100
"""Engines that may shut down while they run a request before it ends, so that it does not move for ever."""

_SHORTEST_DEADLINE = 1_000_000
"""Least time left, in nanoseconds, that a hand-over asks for: the engine answers that it is too late."""

logger = logging.getLogger(__name__)


class Handover:
    """A started request, which moves to another engine when its engine is lost.

    Guarded as the feeds are: by the session's lock, or by the event loop.

    Args:
        request: the message that started it.
        accepted: what the engine accepted.
        move: called when the engine is lost, once for each loss.
        clock: source of time.
        begun: time at which it was started.

    Attributes:
        moving: True from the loss of its engine until another one continues it, or none will.
        current: handle of the request where it runs now.
    """

    def __init__(
        self,
        request: wire.StartRequestRequest,
        accepted: request_pb2.AcceptedRequest,
        move: Callable[[Handover], None],
        *,
        clock: Time,
        begun: float,
    ) -> None:
        self.moving = False
        self.current = accepted.handle
        self._left: list[str] = []
        self._request = request
        self._accepted = accepted
        self._number = accepted.handover
        self._feeds: dict[BaseFeed, Callable[[], None]] = {}
        self._move = move
        self._clock = clock
        self._begun = begun
        self._losses = 0
        self._drains = 0

    def add(self, feed: BaseFeed, fill: Callable[[], None]) -> None:
        """Add a sequence; `fill` begins to fill its reader from the engine that its feed names."""
        self._feeds[feed] = fill
        feed.adrift = self._lost

    def _lost(self) -> None:
        if not self.moving:
            self.moving = True
            self._move(self)

    @property
    def handle(self) -> str:
        """The handle that the caller knows."""
        return self._accepted.handle

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._accepted.request_id

    def start(self) -> wire.StartRequestRequest:
        """Return the message that continues the request on another engine. All its sequences stop reading.

        Raises:
            EngineLostError: it has lost too many engines, or too many have shut down.
        """
        error = self._loss()
        self._count()
        if error.reason != "ENGINE_LOST":  # Its engine may answer again, and still have it.
            self._left.append(self.current)
        logger.info("%s The request goes on at another engine.", error)
        request = wire.StartRequestRequest()
        request.CopyFrom(self._request)
        request.handover = self._number + 1
        request.config.seed = self._accepted.seed
        self._shorten_deadline(request)
        for feed in self._feeds:
            feed.fail(error)
            request.resume.sequences.append(feed.query(partial(SequenceReader.resumed, index=feed.index)))
        return request

    def accept(self, accepted: request_pb2.AcceptedRequest) -> None:
        """Continue on the engine that accepted the request.

        Raises:
            EngineLostError: it has other ids for the prompt, or another adapter. After this or another error nobody
                reads that copy.
        """
        # Nobody reads this copy yet: if anything fails below, it stays in the list, and is released.
        self._left.append(accepted.handle)
        if accepted.prompt_hash != self._accepted.prompt_hash:
            raise EngineLostError(
                "the engine that held the request is gone, and the one that took over has another tokenizer or template"
            )
        if accepted.adapter_digest != self._accepted.adapter_digest:
            raise EngineLostError(
                "the engine that held the request is gone, and on the one that took over its lora_name names an adapter"
                " with other content"
            )
        self._number = accepted.handover
        self.current = accepted.handle
        unfinished = [feed for feed in self._feeds if not feed.over]
        for feed in self._feeds:
            feed.current = accepted.handle
        for feed in unfinished:
            feed.apply(SequenceReader.land)
        self.moving = False  # Before they are filled: that may find the new engine lost.
        for feed in unfinished:
            self._feeds[feed]()
        self._left.remove(accepted.handle)

    def unread(self, *, held: bool) -> list[str]:
        """Return, once each, the handles of copies that nobody reads; `held`: the caller still has the request."""
        left, self._left = self._left, []
        return left if held else list(dict.fromkeys([*left, self.current]))

    def interrupt(self, error: HeadraceError) -> None:
        """Have blocked reads raise an error once: no server could be reached for too long."""
        for feed in self._feeds:
            feed.apply(SequenceReader.interrupt, error)

    def give_up(self, error: BaseException) -> None:
        """End the sequences, since no other engine continues them. A defect of this client is named as such."""
        loss = _loss_of(error).about(self.request_id)
        self.moving = False
        for feed in self._feeds:
            try:
                feed.apply(SequenceReader.strand, loss)
            except HeadraceError as damage:
                feed.fail(damage)

    def _count(self) -> None:
        """Count the end of an engine. Raise EngineLostError if the request has seen too many."""
        if self.drained:
            self._drains += 1
        else:
            self._losses += 1
        if self._losses > MOST_LOSSES:
            raise EngineLostError(f"{self._losses} engines were lost while they ran the request")
        if self._drains > MOST_DRAINS:
            raise EngineLostError(f"{self._drains} engines shut down while they ran the request")

    @property
    def drained(self) -> bool:
        """Whether its engine ended the request because it shuts down."""
        return any(feed.query(lambda reader: reader.drained and not reader.failed) for feed in self._feeds)

    @property
    def _failed(self) -> bool:
        """Whether its engine ended the request because it cannot compute the model any more."""
        return any(feed.query(lambda reader: reader.failed) for feed in self._feeds)

    def _loss(self) -> HeadraceError:
        losses = [loss for feed in self._feeds if (loss := feed.query(lambda reader: reader.loss)) is not None]
        why = "its engine cannot compute the model any more" if self._failed else "its engine shuts down"
        return losses[0] if losses else EngineLostError(why, request_id=self.request_id)

    def _shorten_deadline(self, request: Any) -> None:
        """Leave of a deadline, which counts from the arrival, what is left of it."""
        if request.config.HasField("deadline"):
            passed = int((self._clock.monotonic() - self._begun) * 1e9)
            left = request.config.deadline.ToNanoseconds() - passed
            request.config.deadline.FromNanoseconds(max(left, _SHORTEST_DEADLINE))


def _loss_of(error: BaseException) -> HeadraceError:
    """Return what readers see of the error that ended a hand-over."""
    if isinstance(error, EngineLostError):
        return error
    if isinstance(error, HeadraceError):
        text = f"the engine that held the request is gone, and no other one took over: {error.message}"
        return EngineLostError(text, details=error.details)
    return InternalServerError(f"a defect of the client: it could not hand the request over ({error!r})")
