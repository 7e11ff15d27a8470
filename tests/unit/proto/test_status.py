"""Failures as clients and servers alike write and read them."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any as PackedDetail
from google.rpc import error_details_pb2
from headrace_proto.v1.model_pb2 import MODEL_STATE_STOPPED, ModelStateInfo
from headrace_proto.v1.status_pb2 import BadRequest, ErrorInfo, QueueInfo, RequestInfo, RetryInfo, Status
from headrace_proto.wire.status import (
    details_of,
    failure,
    has_status,
    info_of,
    pack,
    state_name,
    status_in,
    trailer_of,
)

DETAILS = [
    RetryInfo(retry_delay={"seconds": 2}),
    BadRequest(field_violations=[{"field": "top_p", "description": "is 2"}]),
    RequestInfo(request_id="one", serving_data="e/1"),
    QueueInfo(waiting_ahead=3, max_waiting=4),
    ModelStateInfo(model_name="smol", state=MODEL_STATE_STOPPED),
]


def test_what_was_packed_comes_out_again() -> None:
    status = failure("NOT_FOUND", "UNKNOWN_REQUEST", "none", *DETAILS, metadata={"handle": "e/1"})
    info = ErrorInfo(reason="UNKNOWN_REQUEST", domain="headrace", metadata={"handle": "e/1"})
    assert (status.code, status.message) == (5, "none")
    assert details_of(status) == [info, *DETAILS]
    assert info_of(status) == info


@pytest.mark.parametrize("detail", [ErrorInfo(reason="A"), *DETAILS], ids=lambda detail: detail.DESCRIPTOR.name)
def test_details_with_a_twin_of_google_s_travel_under_its_name(detail: ErrorInfo) -> None:
    name = detail.DESCRIPTOR.name
    ours = hasattr(error_details_pb2, name)
    assert pack(detail).type_url == f"type.googleapis.com/{'google.rpc' if ours else 'headrace.v1'}.{name}"


def test_details_that_cannot_be_read_hide_nothing() -> None:
    status = failure("INTERNAL", "ENGINE_FAULT", "broken", DETAILS[0])
    stranger = PackedDetail(type_url="type.googleapis.com/other.Detail", value=b"1")
    damaged = PackedDetail(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")
    status.details.extend([stranger, damaged])
    assert [type(detail) for detail in details_of(status)] == [ErrorInfo, RetryInfo]


def test_an_info_of_another_domain_is_not_ours() -> None:
    status = Status(code=14, details=[pack(ErrorInfo(reason="OTHER", domain="example.com"))])
    assert info_of(status) == ErrorInfo()
    assert info_of(Status(code=14)) == ErrorInfo()


def test_trailers_carry_a_failure() -> None:
    status = failure("UNAVAILABLE", "DRAINING", "going away")
    assert status_in([("other", "text"), *trailer_of(status)]) == status
    assert has_status(trailer_of(status))
    assert status_in([("grpc-status-details-bin", b"\xff")]) is None
    assert status_in(None) is None
    assert not has_status(None)


def test_a_state_of_a_later_build_is_its_number() -> None:
    assert state_name(MODEL_STATE_STOPPED) == "STOPPED"
    assert state_name(99) == "99"  # type: ignore[arg-type]
