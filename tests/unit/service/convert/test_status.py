"""Failures as statuses: readable with the libraries that everybody has, and small enough for the trailers."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from headrace_engine import errors
from headrace_engine.errors import FieldViolation
from headrace_engine.service.convert.status import MAX_VIOLATIONS, code_of, shorten, to_error, to_status
from headrace_proto.v1.model_pb2 import MODEL_STATE_STOPPED, ModelStateInfo
from headrace_proto.v1.status_pb2 import ErrorReason, QueueInfo, Status

CODES = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BadModel: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BadProcessor: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfMemory: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Internal: grpc.StatusCode.INTERNAL,
}


def _google(status: Status) -> status_pb2.Status:
    """The same bytes, read by Google's own class."""
    return status_pb2.Status.FromString(status.SerializeToString())


def _detail(status: Status, kind):
    (found,) = [detail for detail in _google(status).details if detail.Is(kind.DESCRIPTOR)]
    message = kind()
    found.Unpack(message)
    return message


@pytest.mark.parametrize("kind", CODES)
def test_the_type_decides_the_code_with_error_info(kind):
    status = to_status(kind("what is wrong"))
    assert status.code == CODES[kind].value[0]
    assert status.message == "what is wrong"
    info = _detail(status, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == (kind.reason, "headrace")
    assert f"ERROR_REASON_{info.reason}" in {value.name for value in ErrorReason.DESCRIPTOR.values}


def test_every_class_of_the_tree_has_a_code():
    tree = [errors.HeadraceError]
    for kind in tree:
        tree += kind.__subclasses__()
    assert {kind for kind in tree if kind.__module__ == errors.__name__} - {errors.HeadraceError} == set(CODES)
    assert all(code_of(kind("x")) is code for kind, code in CODES.items())


def test_wrong_fields_stand_in_bad_request():
    violations = [FieldViolation("config.top_p", "= 2 is out of range"), FieldViolation("config.n", "= 0")]
    found = _detail(to_status(errors.InvalidArgument("two", violations=violations)), error_details_pb2.BadRequest)
    assert [(each.field, each.description) for each in found.field_violations] == [
        ("config.top_p", "= 2 is out of range"),
        ("config.n", "= 0"),
    ]


def test_overload_says_when_to_come_back_and_the_queue_length():
    status = to_status(errors.ResourceExhausted("full", retry_after=1.25, waiting_ahead=7, max_waiting=8))
    delay = _detail(status, error_details_pb2.RetryInfo).retry_delay
    assert (delay.seconds, delay.nanos) == (1, 250_000_000)
    assert _detail(status, QueueInfo) == QueueInfo(waiting_ahead=7, max_waiting=8)


def test_a_delay_on_the_wire_is_positive():
    status = to_status(errors.Unavailable("again", retry_after=0.0))
    assert _detail(status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() > 0


def test_a_state_in_the_way_is_named():
    error = errors.FailedPrecondition("stopped", state="STOPPED", metadata={"model_name": "smol"})
    assert _detail(to_status(error), ModelStateInfo) == ModelStateInfo(model_name="smol", state=MODEL_STATE_STOPPED)


def test_a_fault_names_the_request_that_it_hit():
    error = errors.Internal("fault", metadata={"request_id": "r1", "handle": "e1/i/0"})
    found = _detail(to_status(error), error_details_pb2.RequestInfo)
    assert (found.request_id, found.serving_data) == ("r1", "e1/i/0")


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgument("a", reason="NOT_SUPPORTED", violations=[FieldViolation("config.n", "b")]),
        errors.ResourceExhausted("a", retry_after=2.0, waiting_ahead=3, max_waiting=4),
        errors.FailedPrecondition("a", state="FAILED", metadata={"model_name": "m"}, retry_after=0.5),
        errors.Internal("a", metadata={"handle": "h"}),
    ],
)
def test_an_exception_comes_back_from_its_status(error):
    again = to_error(to_status(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)


def test_the_largest_status_fits_the_trailers():
    """Non-ASCII text is the worst: four bytes a character in the details."""
    long = "\U0001f30a" * 100_000
    error = errors.InvalidArgument(
        long,
        violations=[FieldViolation(long, long)] * 1000,
        metadata=dict.fromkeys(("model_name", "engine", "handle", "limit", "value"), long),
    )
    status = to_status(error)
    assert len(status.SerializeToString()) < 4900
    found = _detail(status, error_details_pb2.BadRequest).field_violations
    assert len(found) == MAX_VIOLATIONS
    assert f"{1000 - MAX_VIOLATIONS + 1} more fields are wrong" in found[-1].description
    assert "(100000 characters in all)" in status.message


@pytest.mark.parametrize("limit", range(40, 60))
def test_cutting_a_text_leaves_whole_characters_within_the_limit(limit):
    text = "é€\U0001f30a" * 50
    cut = shorten(text, limit)
    assert len(cut.encode()) <= limit
    assert text.startswith(cut.split("…")[0])
    assert shorten("short", limit) == "short"
