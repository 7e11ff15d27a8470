"""Failures on the wire as exceptions."""

from __future__ import annotations

import pickle

import grpc
import headrace
import pytest
from headrace import errors
from headrace._base.caller_words import METHODS
from headrace._values.wire_errors import error_from_status
from headrace_proto.v1 import model_pb2, status_pb2
from headrace_proto.wire.status import CODE_NAMES
from support.scripted.replies import URL, Failure, packed

TABLE = {
    "INVALID_ARGUMENT": (
        errors.InvalidRequestError,
        ["INVALID_FIELD", "NOT_SUPPORTED", "PROMPT_TOO_LONG", "BAD_RESPONSE_FORMAT", "BAD_TEMPLATE"],
    ),
    "NOT_FOUND": (errors.NotFoundError, ["UNKNOWN_MODEL", "UNKNOWN_REQUEST", "UNKNOWN_LORA", "UNKNOWN_ENGINE"]),
    "ALREADY_EXISTS": (errors.ConflictError, ["MODEL_EXISTS", "REQUEST_ID_REUSED", "LORA_EXISTS"]),
    "OUT_OF_RANGE": (errors.InvalidRequestError, ["POSITION_OUT_OF_RANGE"]),
    "FAILED_PRECONDITION": (
        errors.StateError,
        ["WRONG_STATE", "MODEL_NOT_RUNNING", "BAD_MODEL", "BAD_PROCESSOR", "OUT_OF_MEMORY", "LORA_IN_USE"],
    ),
    "RESOURCE_EXHAUSTED": (errors.OverloadedError, ["QUEUE_FULL", "RATE_LIMITED", "RESULTS_FULL"]),
    "UNAVAILABLE": (
        errors.UnavailableError,
        ["NO_ENGINE", "DRAINING", "ENGINE_UNREACHABLE", "CORE_RESTARTING", "SESSION_SILENT", "MODEL_STARTING"],
    ),
    "UNAUTHENTICATED": (errors.AuthError, ["BAD_API_KEY"]),
    "PERMISSION_DENIED": (errors.AuthError, ["NOT_ALLOWED"]),
    "DEADLINE_EXCEEDED": (errors.DeadlineError, ["DEADLINE_NOT_MET"]),
    "INTERNAL": (errors.InternalServerError, ["ENGINE_FAULT"]),
}


@pytest.mark.parametrize("code", TABLE)
def test_the_table_of_failures(code: str) -> None:
    kind, reasons = TABLE[code]
    for reason in reasons:
        error = error_from_status(Failure(grpc.StatusCode[code], "a sentence.", reason=reason).status())
        assert type(error) is kind
        assert (error.reason, error.message) == (reason, "a sentence.")


@pytest.mark.parametrize("code", TABLE)
def test_bare_codes_and_unknown_reasons_map_by_their_code(code: str) -> None:
    kind, _ = TABLE[code]
    assert type(error_from_status(Failure(grpc.StatusCode[code]).status())) is kind
    assert error_from_status(Failure(grpc.StatusCode[code]).status()).reason == code
    error = error_from_status(Failure(grpc.StatusCode[code], reason="OF_TOMORROW").status())
    assert (type(error), error.reason) == (kind, "OF_TOMORROW")


def test_every_reason_of_the_contract_is_in_the_table() -> None:
    known = {reason for _, reasons in TABLE.values() for reason in reasons} | {"ENGINE_LOST"}
    names = {name.removeprefix("ERROR_REASON_") for name in status_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert names - {"UNSPECIFIED"} == known


def test_every_code_of_grpc_makes_an_exception() -> None:
    assert {code.value[0]: code.name for code in grpc.StatusCode if code.value[0]} == CODE_NAMES
    for number in [*CODE_NAMES, 99]:
        error = error_from_status(status_pb2.Status(code=number))
        assert isinstance(error, headrace.HeadraceError)
        assert error.message


def test_lost_engines_released_handles_and_unknown_names_differ() -> None:
    lost = Failure(grpc.StatusCode.NOT_FOUND, reason="ENGINE_LOST").status()
    unknown = Failure(grpc.StatusCode.NOT_FOUND, reason="UNKNOWN_REQUEST").status()
    assert type(error_from_status(lost)) is errors.EngineLostError
    assert type(error_from_status(lost, handle="h")) is errors.EngineLostError
    assert type(error_from_status(unknown)) is errors.NotFoundError
    assert type(error_from_status(unknown, handle="h")) is errors.RequestReleasedError


def test_details_are_read() -> None:
    violation = status_pb2.BadRequest.FieldViolation(field="config.top_p", description="0.0 is not in (0, 1]")
    state = model_pb2.ModelStateInfo(model_name="smol", state=model_pb2.MODEL_STATE_INITIAL)
    details = [
        packed(status_pb2.BadRequest(field_violations=[violation]), URL + "BadRequest"),
        packed(status_pb2.RequestInfo(request_id="r-17", serving_data="h"), URL + "RequestInfo"),
        packed(status_pb2.QueueInfo(waiting_ahead=3, max_waiting=256), "type.googleapis.com/headrace.v1.QueueInfo"),
        packed(state, "type.googleapis.com/headrace.v1.ModelStateInfo"),
        packed(state, "type.googleapis.com/of.Tomorrow"),
    ]
    failure = Failure(grpc.StatusCode.INTERNAL, reason="ENGINE_FAULT", retry_after=0.25, details=details)
    error = error_from_status(failure.status())
    assert error.details == {
        "metadata": {},
        "field_violations": [{"field": "config.top_p", "description": "0.0 is not in (0, 1]"}],
        "handle": "h",
        "waiting_ahead": 3,
        "max_waiting": 256,
        "model_name": "smol",
        "state": "INITIAL",
    }
    assert (error.request_id, error.retry_after) == ("r-17", 0.25)


def test_wire_calls_are_named_as_methods_unless_quoted() -> None:
    text = """StopModel: model 'StartModel' is INITIAL, this model's "WatchModel" is not: InstallModel, StartModels"""
    error = error_from_status(Failure(grpc.StatusCode.FAILED_PRECONDITION, text, reason="WRONG_STATE").status())
    assert error.message == (
        """stop_model: model 'StartModel' is INITIAL, this model's "WatchModel" is not: install_model, StartModels"""
    )


def test_every_method_in_messages_exists() -> None:
    for method in METHODS.values():
        assert callable(getattr(headrace.Client, method))
        assert callable(getattr(headrace.AsyncClient, method))


@pytest.mark.parametrize(
    ("field", "argument"),
    [
        ("config.top_p", "top_p"),
        ("chat.messages", "messages"),
        ("token_ids[0]", "ids[0]"),
        (r"config.logit_bias['\1']", r"logit_bias['\1']"),
        ("config.logits_processors[1].name", "logits_processors[1].name"),
    ],
)
def test_wire_fields_are_named_as_arguments_and_kept_in_details(field: str, argument: str) -> None:
    violation = status_pb2.BadRequest.FieldViolation(field=field, description="is wrong")
    bad = packed(status_pb2.BadRequest(field_violations=[violation]), URL + "BadRequest")
    text = f"{field} is wrong; {field} is wrong"
    status = Failure(grpc.StatusCode.INVALID_ARGUMENT, text, reason="INVALID_FIELD", details=[bad]).status()
    error = error_from_status(status)
    assert error.message == f"{argument} is wrong; {argument} is wrong"
    assert error.details["field_violations"] == [{"field": field, "description": "is wrong"}]


def test_a_damaged_detail_does_not_hide_the_failure() -> None:
    status = Failure(grpc.StatusCode.NOT_FOUND, "no such model.", reason="UNKNOWN_MODEL").status()
    status.details.add(type_url=URL + "RetryInfo", value=b"\xff\xff\xff")
    error = error_from_status(status)
    assert (type(error), error.message, error.retry_after) == (errors.NotFoundError, "no such model.", None)


def test_the_text_is_a_sentence_with_reason_and_request() -> None:
    error = errors.StateError('model "smol" is INITIAL: start it first (start_model).', reason="MODEL_NOT_RUNNING")
    assert str(error) == 'model "smol" is INITIAL: start it first (start_model). [MODEL_NOT_RUNNING]'
    long = errors.InvalidRequestError("wrong.", request_id="8f2c7a90-0000-0000-0000-000000000000")
    assert str(long) == "wrong. [INVALID_FIELD, request 8f2c…]"
    assert str(errors.InvalidRequestError("wrong", request_id="job-17")) == "wrong. [INVALID_FIELD, request job-17]"


def test_errors_are_also_the_kinds_that_python_programs_catch() -> None:
    assert issubclass(errors.InvalidRequestError, ValueError)
    assert issubclass(errors.DeadlineError, TimeoutError)


def test_errors_cross_process_borders_whole() -> None:
    for kind in (errors.OverloadedError, errors.DeadlineError, errors.InvalidRequestError):
        error = kind("wait.", reason="QUEUE_FULL", request_id="r", details={"waiting_ahead": 3}, retry_after=1.5)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


def test_the_tree_in_the_docstring_names_every_exception() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert errors.__doc__ is not None
    assert all(kind.__name__ in errors.__doc__ for kind in kinds)
    assert all(hasattr(headrace, kind.__name__) for kind in kinds)


def test_the_id_of_a_released_request_is_a_released_one() -> None:
    info = status_pb2.ErrorInfo(
        reason="UNKNOWN_REQUEST", domain="headrace", metadata={"handle": "e1/i/1", "handover": "0"}
    )
    status = status_pb2.Status(code=5, message="it was released")
    status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    assert type(error_from_status(status)) is errors.RequestReleasedError
