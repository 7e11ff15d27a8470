"""Names in answers: found by the message types' own description, so that no field is forgotten."""

from __future__ import annotations

from headrace_gateway.engines.rewrite import readdress, with_engine
from headrace_proto.v1 import (
    engine_service_pb2,
    model_pb2,
    model_service_pb2,
    request_pb2,
    request_service_pb2,
    session_pb2,
    stat_pb2,
    status_pb2,
)
from support.scripted.engine_answers import packed

OWN, OURS = "self/abc/0123", "e1/abc/0123"


def failure(**facts):
    info = packed("ErrorInfo", status_pb2.ErrorInfo(reason="ENGINE_FAULT", domain="headrace", metadata=facts))
    request = packed("RequestInfo", status_pb2.RequestInfo(request_id="self/x/y", serving_data=OWN))
    return status_pb2.Status(code=13, message=f"{OWN} failed", details=[info, request])


def fact(status, name="handle"):
    return status_pb2.ErrorInfo.FromString(status.details[0].value).metadata[name]


def test_with_engine_changes_the_first_segment_only():
    assert with_engine("a/b/c", "e1") == "e1/b/c"
    assert with_engine("nonsense", "e1") == "nonsense"
    assert with_engine("", "e1") == ""


def test_handles_at_any_depth_are_rewritten():
    state = request_pb2.RequestState(request=request_pb2.AcceptedRequest(handle=OWN, request_id="self/x/y"))
    answer = request_service_pb2.ListRequestsResponse(requests=[state, state], next_page_token="self/x/y")
    assert readdress(answer, "e1") is answer
    assert [each.request.handle for each in answer.requests] == [OURS, OURS]
    assert answer.requests[0].request.request_id == "self/x/y"
    assert answer.next_page_token == "self/x/y"


def test_failures_within_answers_are_rewritten_in_their_details():
    end = request_pb2.EndRecord(error=failure(handle=OWN, value="self/x/y"))
    message = readdress(request_service_pb2.GenerateResponse(end=end), "e1")
    error = message.end.error
    assert fact(error) == OURS
    assert fact(error, "value") == "self/x/y"
    assert status_pb2.RequestInfo.FromString(error.details[1].value).serving_data == OURS
    assert error.message == f"{OWN} failed"
    item = readdress(session_pb2.HandleError(handle=OWN, status=failure(handle=OWN)), "e1")
    assert (item.handle, fact(item.status)) == (OURS, OURS)


def test_details_without_a_handle_stay_byte_for_byte():
    info = packed(
        "ErrorInfo", status_pb2.ErrorInfo(reason="QUEUE_FULL", domain="headrace", metadata={"engine": "self"})
    )
    odd = status_pb2.Status(
        code=8, details=[info, packed("Other", status_pb2.RequestInfo(serving_data=OWN), "else.v1")]
    )
    before = odd.SerializeToString(deterministic=True)
    assert readdress(odd, "e1").SerializeToString(deterministic=True) == before


def test_engine_fields_name_the_engine_as_the_list_does():
    info = model_pb2.ModelInfo(engine="self")
    models = readdress(model_service_pb2.ListModelsResponse(models=[info, info]), "e1")
    assert [each.engine for each in models.models] == ["e1", "e1"]
    watched = readdress(model_service_pb2.WatchModelResponse(model=info), "e1")
    assert watched.model.engine == "e1"
    assert readdress(model_service_pb2.InspectModelResponse(engine="self"), "e1").engine == "e1"
    stats = readdress(engine_service_pb2.GetEngineStatResponse(stats=[stat_pb2.EngineStat(engine="self")]), "e1")
    assert stats.stats[0].engine == "e1"


def test_what_is_not_there_is_not_made():
    message = readdress(request_service_pb2.GenerateResponse(), "e1")
    assert message.SerializeToString() == b""


def test_every_handle_of_the_contract_is_reached():
    """A field called handle, or a Status, that a message of an answer gains is rewritten without further work."""
    from headrace_gateway.engines import rewrite

    answers = [
        each
        for module in (request_service_pb2, model_service_pb2, session_pb2)
        for name, each in module.DESCRIPTOR.message_types_by_name.items()
        if name.endswith("Response")
    ]

    def fields(descriptor, path=()):
        for field in descriptor.fields:
            inner = field.message_type
            if field.name == "handle" or (inner is not None and inner.full_name == "headrace.v1.Status"):
                yield (*path, field.name)
            elif inner is not None and inner.full_name.startswith("headrace.v1."):
                yield from fields(inner, (*path, field.name))

    found = 0
    for answer in answers:
        for path in fields(answer):
            descriptor = answer
            for name in path:
                leading = {field.name: field for field in rewrite._leading_fields(descriptor)}
                assert name in leading, (answer.full_name, path)
                descriptor = leading[name].message_type
            found += 1
    assert found > 10
