"""Sessions of a scripted server: each channel plays the script of a stream of its own, within its window."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message
from headrace._values.integrity import checksum
from headrace_proto.v1 import request_pb2, request_service_pb2, session_pb2, status_pb2

Send = Callable[[session_pb2.SessionResponse], None]

FOR_EVER = 1e6  # seconds; far longer than any test takes


class Script(Protocol):
    """The part of a server that a session uses."""

    session_times: tuple[float, float]
    answers_pings: bool
    said: list[session_pb2.SessionRequest]

    def next_steps(self, request: Any) -> list[Any]:
        """Return the steps that a stream for this request would play."""

    def count_stream(self, change: int) -> None:
        """Count a channel that begins or ends."""

    def note(self, request: session_pb2.SessionRequest) -> None:
        """Record a message of the client."""


class ScriptedSession:
    """One session stream."""

    def __init__(self, script: Script, context: grpc.ServicerContext) -> None:
        self._script = script
        self._context = context
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._players: dict[int, _Player] = {}

    def answers(self, requests: Iterator[session_pb2.SessionRequest]) -> Iterator[session_pb2.SessionResponse]:
        """Play until the client leaves or `end` is called."""
        listener = threading.Thread(target=self._listen, args=(requests,), daemon=True)
        listener.start()
        try:
            yield self._opened()
            while (answer := self._answers.get()) is not None:
                if not isinstance(answer, Message):
                    answer(self._context)
                yield answer
        finally:
            for player in list(self._players.values()):
                player.stop()

    def say_goodbye(self) -> None:
        """Send `closing`; the stream ends when its client has half-closed."""
        self._answers.put(session_pb2.SessionResponse(closing=session_pb2.Closing()))

    def end(self, how: Callable[[grpc.ServicerContext], None] | None) -> None:
        """End the stream; `how` aborts it."""
        self._answers.put(how)

    def _opened(self) -> session_pb2.SessionResponse:
        opened = session_pb2.SessionOpened(server="e1")
        interval, timeout = self._script.session_times
        opened.ping_interval.FromNanoseconds(round(interval * 1e9))
        opened.ping_timeout.FromNanoseconds(round(timeout * 1e9))
        return session_pb2.SessionResponse(opened=opened)

    def _listen(self, requests: Iterator[session_pb2.SessionRequest]) -> None:
        # Raises once the client is gone.
        with contextlib.suppress(grpc.RpcError):
            for request in requests:
                self._script.note(request)
                self._apply(request)
        self._answers.put(None)

    def _apply(self, request: session_pb2.SessionRequest) -> None:
        for attach in request.attach:
            assert attach.channel not in self._players, f"channel {attach.channel} was used before"
            player = self._players[attach.channel] = _Player(self._script, attach, self._answers.put)
            player.start()
        for channel in request.detach:
            self._players[channel].stop()
        for ack in request.acks:
            self._players[ack.channel].ack(ack)
        if request.HasField("ping") and self._script.answers_pings:
            self._answers.put(session_pb2.SessionResponse(pong=session_pb2.Pong(number=request.ping.number)))


class _Player:
    """One channel."""

    def __init__(self, script: Script, attach: session_pb2.Attach, send: Send) -> None:
        self._script = script
        self._attach = attach
        self._send = send
        self._position = self._acked = attach.from_position
        self._limit = attach.from_position + attach.window
        self._waiting: list[request_pb2.GeneratedElements] = []
        self._status = 0
        self._steps: list[Any] = []
        self._gone = threading.Event()
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._counted = True
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self) -> None:
        """Start to play. The script's steps are taken first: who sees the stream may close it at once."""
        attach = self._attach
        request = request_service_pb2.GeneratedElementsRequest(
            handle=attach.handle, index=attach.index, from_position=attach.from_position, owner=attach.owner
        )
        self._steps = self._script.next_steps(request)
        self._script.count_stream(+1)
        self._thread.start()

    def stop(self) -> None:
        """Stop: the channel was detached, or its stream is gone."""
        self._gone.set()
        self._count_out()

    def ack(self, ack: session_pb2.Ack) -> None:
        """Move the window."""
        with self._lock:
            assert self._acked <= ack.position <= self._position, f"ack at {ack.position} of {self._position}"
            self._acked, self._limit = ack.position, ack.position + ack.window
            self._say(self._rows())

    def _count_out(self) -> None:
        with self._counting:
            counted, self._counted = self._counted, False
        if counted:
            self._script.count_stream(-1)

    def _play(self) -> None:
        self._send_attached(self._steps)
        if not all(self._step(step) for step in self._steps):
            return
        self._refuse(status_pb2.Status(code=14, message="the steps are over"))

    def _send_attached(self, steps: list[Any]) -> None:
        """Acknowledge the attach, if the checksum up to its position is known."""
        begin = self._attach.from_position
        known = [0] if begin == 0 else []
        for step in steps:
            if isinstance(step, Message) and step.HasField("elements") and step.elements.position == begin:
                known.append(step.elements.checksum_before)
            elif isinstance(step, Message) and step.HasField("end") and step.end.position == begin:
                known.append(step.end.checksum)
        if known:
            attached = session_pb2.Attached(channel=self._attach.channel, position=begin, checksum=known[0])
            self._send(session_pb2.SessionResponse(attached=[attached]))

    def _step(self, step: Any) -> bool:
        """Play a step. Return False if it was the last."""
        if isinstance(step, Message):
            return self._send_news(step)
        if isinstance(step, Exception):
            self._refuse(status_pb2.Status(code=2, message=f"Exception iterating responses: {step}"))
            return False
        if isinstance(step, threading.Event):
            while not step.is_set() and not self._gone.is_set():
                step.wait(0.01)
        elif callable(step):
            step()
        elif hasattr(step, "status"):
            self._refuse(step.status())
            return False
        else:
            self._gone.wait()
        return not self._gone.is_set()

    def _refuse(self, status: status_pb2.Status) -> None:
        attach = self._attach
        error = session_pb2.HandleError(channel=attach.channel, handle=attach.handle, index=attach.index, status=status)
        self._count_out()
        self._send(session_pb2.SessionResponse(errors=[error]))

    def _send_news(self, response: Any) -> bool:
        with self._lock:
            if response.HasField("elements"):
                self._waiting.append(response.elements)
            answer = self._rows()
            if response.status != self._status and not response.HasField("end"):
                self._status = response.status
                prefix = response.elements.prefix if response.elements.HasField("prefix") else None
                answer.status_changes.add(channel=self._attach.channel, status=response.status, prefix=prefix)
            if response.HasField("end"):
                answer.ends.add(channel=self._attach.channel, end=response.end)
            self._say(answer)
        if response.HasField("end"):
            self._count_out()
        return not response.HasField("end")

    def _rows(self) -> session_pb2.SessionResponse:
        """Return a message with the rows that the window allows, and the window's state if it holds back more."""
        answer = session_pb2.SessionResponse()
        while self._waiting and self._position < self._limit and not self._gone.is_set():
            part = self._waiting.pop(0)
            left = self._limit - self._position
            if len(part.token_ids) > left:
                first, rest = _split(part, left)
                self._waiting.insert(0, rest)
                part = first
            self._add_row(answer.step, part)
            self._position += len(part.token_ids)
        if self._waiting and not self._gone.is_set():
            answer.windows.add(
                channel=self._attach.channel,
                position=self._position,
                limit=self._limit,
                generated_length=self._position + sum(len(part.token_ids) for part in self._waiting),
            )
        return answer

    def _add_row(self, step: session_pb2.StepBatch, part: request_pb2.GeneratedElements) -> None:
        if part.HasField("logprobs") or part.tensors:
            logprobs = part.logprobs if part.HasField("logprobs") else None
            step.details.add(row=len(step.channels), logprobs=logprobs, tensors=part.tensors)
        step.channels.append(self._attach.channel)
        step.positions.append(part.position)
        step.counts.append(len(part.token_ids))
        step.token_ids.extend(part.token_ids)
        step.texts.append(part.text)
        step.checksums.append(part.checksum_after)

    def _say(self, answer: session_pb2.SessionResponse) -> None:
        if answer.ByteSize():
            self._send(answer)


def _split(
    part: request_pb2.GeneratedElements, count: int
) -> tuple[request_pb2.GeneratedElements, request_pb2.GeneratedElements]:
    """Split a part without details in two; the text goes with the first."""
    assert not part.HasField("logprobs")
    assert not part.tensors
    middle = checksum(part.token_ids[:count], part.checksum_before)
    first = request_pb2.GeneratedElements(
        position=part.position,
        token_ids=part.token_ids[:count],
        text=part.text,
        checksum_before=part.checksum_before,
        checksum_after=middle,
    )
    rest = request_pb2.GeneratedElements(
        position=part.position + count,
        token_ids=part.token_ids[count:],
        checksum_before=middle,
        checksum_after=part.checksum_after,
    )
    return first, rest
