"""Rewrites an engine's answers to the engine's name in the gateway's list: in handles and "engine" fields.

The fields to rewrite are found once per message type, by a walk over its descriptor.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from google.protobuf.any_pb2 import Any as PackedAny
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from headrace_proto.v1 import status_pb2

M = TypeVar("M", bound=Message)

_PACKAGE = "headrace.v1."
_STATUS = status_pb2.Status.DESCRIPTOR.full_name


def readdress(message: M, engine: str) -> M:
    """Name `engine` as the origin of everything in `message`, which is changed in place and returned.

    The first segment of every handle and every field called "engine" become `engine`, also within the details of
    failures that the message carries.
    """
    descriptor = message.DESCRIPTOR
    if descriptor.full_name == _STATUS:
        _readdress_details(message, engine)
        return message
    for field in _leading_fields(descriptor):
        if field.name == "handle":
            setattr(message, field.name, with_engine(getattr(message, field.name), engine))
        elif field.name == "engine":
            setattr(message, field.name, engine)
        else:
            for part in _parts(message, field):
                readdress(part, engine)
    return message


def with_engine(handle: str, engine: str) -> str:
    """Replace the first segment of a handle by `engine`; return any other text unchanged."""
    _, separator, rest = handle.partition("/")
    return f"{engine}/{rest}" if separator else handle


def _parts(message: Message, field: FieldDescriptor) -> Iterable[Message]:
    if field.is_repeated:
        parts: Iterable[Message] = getattr(message, field.name)
        return parts
    return [getattr(message, field.name)] if message.HasField(field.name) else []


@cache
def _leading_fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields that are, or contain, something to rewrite. No message type of the contract is recursive."""
    return tuple(field for field in descriptor.fields if _leads(field))


def _leads(field: FieldDescriptor) -> bool:
    inner: Any = field.message_type
    if inner is None:
        return field.name in ("handle", "engine") and field.type == FieldDescriptor.TYPE_STRING
    return inner.full_name == _STATUS or (inner.full_name.startswith(_PACKAGE) and bool(_leading_fields(inner)))


def _readdress_details(status: Any, engine: str) -> None:
    for detail in status.details:
        if detail.type_url.endswith("/google.rpc.ErrorInfo"):
            _readdress_error_info(detail, engine)
        elif detail.type_url.endswith("/google.rpc.RequestInfo"):
            _readdress_request_info(detail, engine)


def _readdress_error_info(detail: PackedAny, engine: str) -> None:
    info = status_pb2.ErrorInfo.FromString(detail.value)
    if "handle" in info.metadata:
        info.metadata["handle"] = with_engine(info.metadata["handle"], engine)
        detail.value = info.SerializeToString(deterministic=True)


def _readdress_request_info(detail: PackedAny, engine: str) -> None:
    info = status_pb2.RequestInfo.FromString(detail.value)
    info.serving_data = with_engine(info.serving_data, engine)
    detail.value = info.SerializeToString(deterministic=True)
