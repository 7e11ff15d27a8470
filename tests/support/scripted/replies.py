"""Replies of a scripted server: messages, failures, and the steps of a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from headrace_proto.v1 import status_pb2

URL = "type.googleapis.com/google.rpc."


@dataclass
class Failure:
    """A failed call: code and message, and optionally a reason and other details."""

    code: grpc.StatusCode
    message: str = "scripted"
    reason: str = ""
    retry_after: float | None = None
    details: Sequence[AnyMessage] = ()

    def status(self) -> status_pb2.Status:
        """The failure on the wire."""
        details = list(self.details)
        if self.reason:
            details.insert(0, packed(status_pb2.ErrorInfo(reason=self.reason, domain="headrace"), URL + "ErrorInfo"))
        if self.retry_after is not None:
            info = status_pb2.RetryInfo()
            info.retry_delay.FromNanoseconds(round(self.retry_after * 1e9))
            details.append(packed(info, URL + "RetryInfo"))
        return status_pb2.Status(code=self.code.value[0], message=self.message, details=details)


def packed(message: Message, url: str) -> AnyMessage:
    """Pack a detail under its type URL."""
    return AnyMessage(type_url=url, value=message.SerializeToString())


class Hang:
    """A step of a stream: send nothing more until the client leaves."""


Step = Message | Failure | Hang | threading.Event | Exception | Callable[[], None]
Reply = Message | Failure | Exception | Callable[[Any], Any] | list[Step]


def play(step: Step, context: grpc.ServicerContext, gone: threading.Event) -> Iterator[Any]:
    """Play one step of a stream; `gone` is set when the client has left."""
    if isinstance(step, Failure):
        fail(step, context)
    elif isinstance(step, Exception):
        raise step
    elif isinstance(step, Hang):
        gone.wait()
    elif isinstance(step, threading.Event):
        while not step.is_set() and not gone.is_set():
            step.wait(0.01)
    elif callable(step):
        step()
    else:
        yield step


def fail(failure: Failure, context: grpc.ServicerContext) -> None:
    """Abort a call."""
    status = failure.status()
    if status.details:
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(failure.code, failure.message)
