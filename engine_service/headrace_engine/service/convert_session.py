"""The session stream: what its client says, and what it is told. Columns stay columns.

Names in capitals turn both ways.
"""

from __future__ import annotations

from typing import Any

from headrace.v1 import session_pb2
from headrace.v1.session_pb2 import SessionRequest, SessionResponse

from headrace_engine.engine import session_update as told
from headrace_engine.engine.fields import NOT_YET
from headrace_engine.engine.session import PING_INTERVAL, PING_TIMEOUT, EngineSession
from headrace_engine.engine.session_channels import Place
from headrace_engine.errors import InvalidArgument
from headrace_engine.service.codec import Codec, write_seconds
from headrace_engine.service.convert_results import END_RECORD, PREFIX_REUSE
from headrace_engine.service.status import fill_status

ATTACHED = Codec(told.Attached, session_pb2.Attached, PREFIX_REUSE)
STATUS_CHANGE = Codec(told.StatusChange, session_pb2.StatusChange, PREFIX_REUSE)
SEQUENCE_END = Codec(told.SequenceEnd, session_pb2.SequenceEnd, END_RECORD)
WINDOW_STATE = Codec(told.WindowState, session_pb2.WindowState)
MODEL_LOAD = Codec(told.ModelLoad, session_pb2.ModelLoad)


def check_options(message: SessionRequest) -> None:
    """Refuse a first message that does not open a session.

    Raises:
        InvalidArgument: it has no options, or asks for what this build does not do.
    """
    if not message.HasField("options"):
        raise InvalidArgument.field("options", "is not set; the first message of a session must have it")
    if message.options.HasField("cache_events"):
        raise InvalidArgument.field("options.cache_events", NOT_YET, reason="NOT_SUPPORTED")


def apply(message: SessionRequest, session: EngineSession) -> None:
    """Do what a message says, in the order of its fields; its options were looked at before.

    Raises:
        InvalidArgument: it breaks the rules of the stream.
    """
    for number, attach in enumerate(message.attach):
        place = Place(attach.channel, attach.handle, attach.index)
        window = attach.window if attach.HasField("window") else None
        session.attach(place, attach.from_position, window, attach.owner, f"attach[{number}]")
    for channel in message.detach:
        session.detach(channel)
    for number, ack in enumerate(message.acks):
        window = ack.window if ack.HasField("window") else None
        session.ack(ack.channel, ack.position, window, f"acks[{number}]")
    if message.HasField("ping"):
        session.ping(message.ping.number)


def session_response(update: told.SessionUpdate, server: str, instance_id: str) -> SessionResponse:
    """An update as a message."""
    message = SessionResponse()
    if update.opened:
        _fill_opened(message.opened, server, instance_id)
    message.attached.extend(map(ATTACHED.to_wire, update.attached))
    if update.rows.channels:
        _fill_step(message.step, update.rows)
    message.status_changes.extend(map(STATUS_CHANGE.to_wire, update.statuses))
    message.ends.extend(map(SEQUENCE_END.to_wire, update.ends))
    for failure in update.errors:
        _fill_error(message.errors.add(), failure)
    message.windows.extend(map(WINDOW_STATE.to_wire, update.windows))
    message.load.extend(map(MODEL_LOAD.to_wire, update.loads))
    if update.pong is not None:
        message.pong.number = update.pong
        message.pong.SetInParent()
    return message


def _fill_opened(opened: Any, server: str, instance_id: str) -> None:
    opened.server, opened.instance_id = server, instance_id
    write_seconds(PING_INTERVAL, opened.ping_interval)
    write_seconds(PING_TIMEOUT, opened.ping_timeout)


def _fill_step(step: Any, rows: told.Rows) -> None:
    step.channels.extend(rows.channels)
    step.positions.extend(rows.positions)
    step.counts.extend(rows.counts)
    step.token_ids.extend(rows.token_ids)
    step.texts.extend(rows.texts)
    step.checksums.extend(rows.checksums)
    for row, logprobs in rows.logprobs.items():
        step.details.add(row=row).logprobs.token_logprobs.extend(logprobs)


def _fill_error(message: Any, failure: told.HandleError) -> None:
    message.channel, message.handle, message.index = failure.channel, failure.handle, failure.index
    fill_status(failure.error, message.status)
