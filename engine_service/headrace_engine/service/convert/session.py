"""Conversion of the messages of a session, in both directions. Columns stay columns.

Names in capitals are codecs, for both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import Message
from headrace_proto.pure.faults import is_fault
from headrace_proto.pure.limits import PING_INTERVAL, PING_TIMEOUT
from headrace_proto.pure.portions import in_portions
from headrace_proto.v1 import session_pb2
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse

from headrace_engine.engine.results.usage import Usage
from headrace_engine.engine.sessions import session_update as updates
from headrace_engine.engine.sessions.session import EngineSession
from headrace_engine.engine.sessions.session_channels import Attachment
from headrace_engine.errors import InvalidArgument
from headrace_engine.service.convert.callers import check_owner
from headrace_engine.service.convert.codec import Codec, write_seconds
from headrace_engine.service.convert.results import END_RECORD, PREFIX_REUSE, fill_details
from headrace_engine.service.convert.status import fill_status

ATTACHED = Codec(updates.Attached, session_pb2.Attached, PREFIX_REUSE)
STATUS_CHANGE = Codec(updates.StatusChange, session_pb2.StatusChange, PREFIX_REUSE)
SEQUENCE_END = Codec(updates.SequenceEnd, session_pb2.SequenceEnd, END_RECORD)
WINDOW_STATE = Codec(updates.WindowState, session_pb2.WindowState)
MODEL_LOAD = Codec(updates.ModelLoad, session_pb2.ModelLoad)
OWNER_USAGE = Codec(Usage, session_pb2.OwnerUsage)

_CACHE_KINDS = {
    True: session_pb2.CACHE_EVENT_KIND_STORED,
    False: session_pb2.CACHE_EVENT_KIND_REMOVED,
    None: session_pb2.CACHE_EVENT_KIND_CLEARED,
}
_CACHE_TIERS = {False: session_pb2.CACHE_TIER_DEVICE, True: session_pb2.CACHE_TIER_HOST}
_UNKNOWN_TIER = session_pb2.CACHE_TIER_UNSPECIFIED

M = TypeVar("M", bound=Message)
Lost = Callable[[int, BaseException], None]
"""Called with the number of a channel, and the exception that it met."""


def check_options(message: SessionRequest) -> None:
    """Refuse a first message that does not open a session.

    Raises:
        InvalidArgument: it has no options.
    """
    if not message.HasField("options"):
        raise InvalidArgument.field("options", "is not set; the first message of a session must have it")


def apply(message: SessionRequest, session: EngineSession) -> None:
    """Apply a message at once."""
    for _ in apply_in_portions(message, session):
        pass


def apply_in_portions(message: SessionRequest, session: EngineSession) -> Iterator[None]:
    """Apply a message, in the order of its fields, except for its options, which `check_options` checks.

    Yield after each portion, so that other sessions have a turn.

    Raises:
        InvalidArgument: the message is invalid.
    """

    def attach(sent: session_pb2.Attach, path: str) -> None:
        attachment = Attachment(sent.channel, sent.handle, sent.index)
        check_owner(sent.owner, f"{path}.owner")
        window = sent.window if sent.HasField("window") else None
        session.attach(attachment, sent.from_position, window, sent.owner, path)

    def ack(sent: session_pb2.Ack, path: str) -> None:
        session.ack(sent.channel, sent.position, sent.window if sent.HasField("window") else None, path)

    yield from in_portions(message.attach, "attach", attach)
    yield from in_portions(message.detach, "detach", lambda channel, _: session.detach(channel))
    yield from in_portions(message.acks, "acks", ack)
    if message.HasField("ping"):
        session.ping(message.ping.number)


def _raise(channel: int, error: BaseException) -> None:
    raise error


def session_response(
    update: updates.SessionUpdate, server: str, instance_id: str, lost: Lost = _raise
) -> SessionResponse:
    """Convert an update to a message.

    Args:
        lost: called for each channel with a fact that cannot be converted; the message then lacks the fact.
    """
    message = SessionResponse()
    if update.opened:
        _fill_opened(message.opened, server, instance_id)
    message.attached.extend(_converted(ATTACHED, update.attached, lost))
    if update.rows.channels:
        _fill_step(message.step, update.rows)
    message.status_changes.extend(_converted(STATUS_CHANGE, update.statuses, lost))
    message.ends.extend(_converted(SEQUENCE_END, update.ends, lost))
    for failure in update.errors:
        _fill_error(message.errors.add(), failure)
    message.windows.extend(_converted(WINDOW_STATE, update.windows, lost))
    message.load.extend(map(MODEL_LOAD.to_wire, update.loads))
    message.usage.extend(map(OWNER_USAGE.to_wire, update.usage))
    if update.cache:
        message.cache_events.first_sequence = update.first_cache_event
        message.cache_events.events.extend(map(_cache_event, update.cache))
    if update.pong is not None:
        message.pong.number = update.pong
        message.pong.SetInParent()
    if update.closing:
        message.closing.SetInParent()
    return message


def _converted(codec: Codec[Any, M], facts: Iterable[Any], lost: Lost) -> Iterator[M]:
    for fact in facts:
        try:
            yield codec.to_wire(fact)
        except BaseException as error:  # a defect of one request: the others share this stream
            if not is_fault(error):
                raise
            lost(fact.channel, error)


def _fill_opened(opened: Any, server: str, instance_id: str) -> None:
    opened.server, opened.instance_id = server, instance_id
    write_seconds(PING_INTERVAL, opened.ping_interval)
    write_seconds(PING_TIMEOUT, opened.ping_timeout)


def _fill_step(step: Any, rows: updates.Rows) -> None:
    step.channels.extend(rows.channels)
    step.positions.extend(rows.positions)
    step.counts.extend(rows.counts)
    step.token_ids.extend(rows.token_ids)
    step.texts.extend(rows.texts)
    step.checksums.extend(rows.checksums)
    for row, details in rows.details.items():
        fill_details(step.details.add(row=row), details)


def _fill_error(message: Any, failure: updates.HandleError) -> None:
    message.channel, message.handle, message.index = failure.channel, failure.handle, failure.index
    fill_status(failure.error, message.status)


def _cache_event(event: updates.CacheEvent) -> session_pb2.CacheEvent:
    return session_pb2.CacheEvent(
        kind=_CACHE_KINDS[event.stored],
        model_name=event.model_name,
        block_hashes=event.keys,
        parent_hash=event.parent,
        block_size=event.block_size,
        tier=_UNKNOWN_TIER if event.stored is None else _CACHE_TIERS[event.host],
    )
