"""Codes of DashInfer for the errors of Headrace."""

from __future__ import annotations

import pytest
from headrace import errors
from headrace.allspark import AsStatus
from headrace.allspark.status import status_of
from headrace_proto.v1.status_pb2 import ErrorReason

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HeadraceError)]
REASONS = [name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()]  # noqa: SIM118


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", REASONS)
def test_every_error_has_a_code_and_is_kept(kind: type[errors.HeadraceError], reason: str) -> None:
    error = kind("text", reason=reason)
    status = status_of(error)
    assert status != AsStatus.ALLSPARK_SUCCESS
    assert status.error is error
    assert "text" in str(status)
    assert status.name in str(status)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("x"), AsStatus.ALLSPARK_PARAM_ERROR),
        (errors.InvalidRequestError("x", reason="PROMPT_TOO_LONG"), AsStatus.ALLSPARK_EXCEED_LIMIT_ERROR),
        (errors.NotFoundError("x", reason="UNKNOWN_MODEL"), AsStatus.ALLSPARK_PARAM_ERROR),
        (errors.RequestReleasedError("x"), AsStatus.ALLSPARK_ILLEGAL_REQUEST_ID),
        (errors.EngineLostError("x"), AsStatus.ALLSPARK_RUNTIME_ERROR),
        (errors.NotFoundError("x", reason="UNKNOWN_LORA"), AsStatus.ALLSPARK_LORA_NOT_FOUND),
        (errors.StateError("x"), AsStatus.ALLSPARK_INVALID_CALL_ERROR),
        (errors.StateError("x", reason="BAD_MODEL"), AsStatus.ALLSPARK_IO_ERROR),
        (errors.StateError("x", reason="OUT_OF_MEMORY"), AsStatus.ALLSPARK_MEMORY_ERROR),
        (errors.StateError("x", reason="MODEL_NOT_RUNNING"), AsStatus.ALLSPARK_REQUEST_DENIED),
        (errors.OverloadedError("x"), AsStatus.ALLSPARK_EXCEED_LIMIT_ERROR),
        (errors.UnavailableError("x", reason="DRAINING"), AsStatus.ALLSPARK_REQUEST_DENIED),
        (errors.InternalServerError("x"), AsStatus.ALLSPARK_RUNTIME_ERROR),
    ],
)
def test_its_code(error: errors.HeadraceError, code: AsStatus) -> None:
    assert status_of(error) == code


def test_a_status_is_its_number_and_knows_its_name() -> None:
    success = AsStatus.ALLSPARK_SUCCESS
    assert (success, success.value, success.name, success.error) == (0, 0, "ALLSPARK_SUCCESS", None)
    assert str(success) == "AsStatus.ALLSPARK_SUCCESS"
    assert AsStatus.ALLSPARK_STREAMING == 200
