"""The in-process transport answers what gRPC answers."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from headrace_engine.errors import FieldViolation, InvalidArgument
from headrace_engine.service.inprocess.call import ANSWERS_AHEAD
from headrace_engine.service.inprocess.transport import InProcessTransport, connect
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from headrace_proto.v1.session_pb2 import SessionRequest
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.transport import CallError
from support.clocks.waiting import DEADLINES, LIMIT, comes
from support.scripted.engine import ScriptedEngine, end, tokens
from unit.service.conftest import status_of

REQUESTS = "headrace.v1.RequestService/"
GENERATE = request_service_pb2.GenerateRequest(model_name="smol", text="hi")
ELEMENTS = request_service_pb2.GeneratedElementsRequest(handle="h")

UNARY = {
    "headrace.v1.ModelService/InstallModel": model_service_pb2.InstallModelRequest(config={"model_name": "tiny"}),
    "headrace.v1.ModelService/GetModel": model_service_pb2.GetModelRequest(model_name="smol", engine_ids=["e1", "e2"]),
    "headrace.v1.ModelService/ListModels": model_service_pb2.ListModelsRequest(),
    "headrace.v1.ModelService/InspectModel": model_service_pb2.InspectModelRequest(model_path="p"),
    REQUESTS + "StartRequest": request_service_pb2.StartRequestRequest(text="hi", config={"temperature": 0.0}),
    REQUESTS + "StopRequest": request_service_pb2.StopRequestRequest(handle="h"),
    REQUESTS + "ReleaseRequest": request_service_pb2.ReleaseRequestRequest(handle="h"),
    REQUESTS + "GetRequest": request_service_pb2.GetRequestRequest(handle="h", from_position=0),
    REQUESTS + "ListRequests": request_service_pb2.ListRequestsRequest(),
    "headrace.v1.EngineService/GetServerInfo": engine_service_pb2.GetServerInfoRequest(),
    "headrace.v1.EngineService/GetEngineStat": engine_service_pb2.GetEngineStatRequest(),
    "headrace.v1.EngineService/Tokenize": engine_service_pb2.TokenizeRequest(text="hi"),
    "headrace.v1.EngineService/Detokenize": engine_service_pb2.DetokenizeRequest(token_ids=[1]),
}

REFUSED = {
    "headrace.v1.ModelService/StartModel": model_service_pb2.StartModelRequest(engine_ids=["e2"]),
    "headrace.v1.ModelService/StopModel": model_service_pb2.StopModelRequest(model_name="no such model"),
    REQUESTS + "SyncRequest": request_service_pb2.SyncRequestRequest(),
    REQUESTS + "GetRequest": request_service_pb2.GetRequestRequest(),
    REQUESTS + "StartRequest": request_service_pb2.StartRequestRequest(text="hi"),
}


@pytest.fixture
def transport(engine):
    transport = InProcessTransport(lambda: engine)
    yield transport
    transport.close()


async def over_grpc(front, method: str, request) -> bytes:
    """One call without any knowledge of its messages' types."""
    call = front.channel.unary_unary(f"/{method}", request_serializer=lambda message: message.SerializeToString())
    return await call(request)


@pytest.mark.parametrize("method", UNARY)
async def test_answers_are_those_of_grpc_byte_for_byte(front, method):
    expected = await over_grpc(front, method, UNARY[method])

    def call() -> bytes:
        transport = InProcessTransport(ScriptedEngine)
        answer = transport.unary(method, UNARY[method], timeout=LIMIT)
        transport.close()
        return answer.SerializeToString()

    assert await asyncio.to_thread(call) == expected


@pytest.mark.parametrize(("method", "request_"), [("Generate", GENERATE), ("GeneratedElements", ELEMENTS)])
async def test_streams_are_those_of_grpc_byte_for_byte(front, method, request_):
    expected = [message.SerializeToString() async for message in getattr(front.requests, method)(request_)]

    def call() -> list[bytes]:
        transport = InProcessTransport(ScriptedEngine)
        answers = [
            answer.SerializeToString() for answer in transport.stream(REQUESTS + method, request_, timeout=LIMIT)
        ]
        transport.close()
        return answers

    assert await asyncio.to_thread(call) == expected


@pytest.mark.parametrize("method", REFUSED)
async def test_failures_are_those_of_grpc_byte_for_byte(front, method):
    def fail(engine: ScriptedEngine) -> ScriptedEngine:
        engine.failures["start_request"] = InvalidArgument("no", violations=[FieldViolation("text", "= hi")])
        return engine

    fail(front.engine)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await over_grpc(front, method, REFUSED[method])

    def call() -> Status:
        transport = InProcessTransport(lambda: fail(ScriptedEngine()))
        with pytest.raises(CallError) as failed:
            transport.unary(method, REFUSED[method], timeout=LIMIT)
        transport.close()
        return failed.value.status

    assert (await asyncio.to_thread(call)).SerializeToString() == status_of(caught.value).SerializeToString()


def code(error: pytest.ExceptionInfo[CallError]) -> grpc.StatusCode:
    return next(each for each in grpc.StatusCode if each.value[0] == error.value.status.code)


def test_a_late_call_is_reported_and_its_wait_cancelled(engine, transport):
    for seconds in DEADLINES:
        with pytest.raises(CallError) as caught:
            transport.unary(
                REQUESTS + "SyncRequest", request_service_pb2.SyncRequestRequest(handle="x"), timeout=seconds
            )
        assert code(caught) is grpc.StatusCode.DEADLINE_EXCEEDED
        if engine.calls[1:]:
            break
    assert engine.sync_cancelled.is_set()


def test_no_time_at_all_is_late_at_once(engine, transport):
    with pytest.raises(CallError) as caught:
        transport.unary(REQUESTS + "StopRequest", request_service_pb2.StopRequestRequest(handle="x"), timeout=0)
    assert code(caught) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert engine.calls == [("start", ())]


def test_a_stream_is_late_too(engine, transport):
    engine.script = [tokens(0, 5), asyncio.Event()]
    for seconds in DEADLINES:
        stream = transport.stream(REQUESTS + "GeneratedElements", ELEMENTS, timeout=seconds)
        came = []
        with pytest.raises(CallError) as caught:
            for answer in stream:
                came.append(list(answer.elements.token_ids))
        assert code(caught) is grpc.StatusCode.DEADLINE_EXCEEDED
        if came:
            break
    assert came == [[5]]


def test_cancelling_a_stream_closes_the_engines_iterator(engine, transport):
    engine.script = [tokens(0, 5), asyncio.Event()]
    stream = transport.stream(REQUESTS + "Generate", GENERATE, timeout=None)
    assert next(stream).request.handle
    next(stream)
    stream.cancel()
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            next(stream)
        assert code(caught) is grpc.StatusCode.CANCELLED
    assert engine.closed["generate"].is_set()


def test_a_stream_that_is_cancelled_before_it_began_ends(engine, transport):
    engine.script = [asyncio.Event()]
    stream = transport.stream(REQUESTS + "Generate", GENERATE, timeout=None)
    stream.cancel()
    stream.cancel()
    with pytest.raises(CallError) as caught:
        list(stream)
    assert code(caught) is grpc.StatusCode.CANCELLED


def test_a_blocked_reader_is_freed_by_another_threads_cancel(engine, transport):
    engine.script = [tokens(0, 5), asyncio.Event()]
    stream = transport.stream(REQUESTS + "GeneratedElements", ELEMENTS, timeout=None)
    next(stream)
    reading, found = threading.Event(), []

    def read() -> None:
        reading.set()
        try:
            next(stream)
        except CallError as error:
            found.append(error.status.code)

    reader = threading.Thread(target=read)
    reader.start()
    comes(reading, "nobody reads")
    stream.cancel()
    reader.join(LIMIT)
    assert not reader.is_alive()
    assert found == [grpc.StatusCode.CANCELLED.value[0]]


def test_an_ended_stream_stays_ended(transport):
    stream = transport.stream(REQUESTS + "GeneratedElements", ELEMENTS, timeout=None)
    assert len(list(stream)) == 3
    stream.cancel()
    assert list(stream) == []


def test_a_slow_reader_holds_the_stream_back(engine, transport):
    """The engine is asked for a few answers ahead, and not for all."""
    asked = []

    class Counted(list):
        def __iter__(self):
            for number in range(1000):
                asked.append(number)
                yield tokens(number, 5)
            yield end(1000)

    engine.script = Counted()
    stream = transport.stream(REQUESTS + "GeneratedElements", ELEMENTS, timeout=None)
    next(stream)
    transport.unary(REQUESTS + "StopRequest", request_service_pb2.StopRequestRequest(handle="x"), timeout=None)
    assert len(asked) <= ANSWERS_AHEAD + 2
    assert len(list(stream)) == 1000
    assert len(asked) == 1000


def test_neither_side_sees_what_the_other_changes_later(engine, transport):
    request = request_service_pb2.StartRequestRequest(text="hi", config={"stop_words": ["a"]})
    first = transport.unary(REQUESTS + "StartRequest", request, timeout=None)
    request.config.stop_words.append("b")
    first.request.handle = "changed"
    second = transport.unary(REQUESTS + "StartRequest", request, timeout=None)
    assert [got[0].config.stop_words for name, got in engine.calls if name == "start_request"] == [("a",), ("a", "b")]
    assert second.request.handle != "changed"


@pytest.mark.parametrize("method", ["headrace.v1.RequestService/NoSuch", "", "/headrace.v1.RequestService/Generate"])
def test_an_unknown_method_is_unimplemented(transport, method):
    with pytest.raises(CallError) as caught:
        transport.unary(method, GENERATE, timeout=None)
    assert code(caught) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["Session", "NoSuch"])
def test_a_method_that_converses_is_none_with_one_question(transport, method):
    with pytest.raises(CallError) as caught:
        transport.stream(REQUESTS + method, SessionRequest(), timeout=None)
    assert code(caught) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["Generate", "NoSuch"])
def test_a_method_with_one_question_does_not_converse(transport, method):
    with pytest.raises(CallError) as caught:
        transport.session(REQUESTS + method)
    assert code(caught) is grpc.StatusCode.UNIMPLEMENTED


def test_a_session_answers_each_message_and_ends_with_the_last(transport):
    conversation = transport.session(REQUESTS + "Session")
    conversation.send(SessionRequest(options={}))
    assert next(conversation).opened.server == "e1"
    for number in (3, 4):
        conversation.send(SessionRequest(ping={"number": number}))
        assert next(conversation).pong.number == number
    conversation.send(SessionRequest(attach=[{"channel": 1, "handle": "h"}]))
    conversation.half_close()
    conversation.half_close()
    assert next(conversation).errors[0].channel == 1
    assert list(conversation) == []
    conversation.send(SessionRequest(ping={"number": 5}))
    assert list(conversation) == []


def test_a_conversation_fails_as_over_grpc(transport):
    conversation = transport.session(REQUESTS + "Session")
    conversation.send(SessionRequest())
    with pytest.raises(CallError, match="options is not set") as caught:
        next(conversation)
    assert code(caught) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("how", [{}, {"lost": True}])
def test_a_cancelled_conversation_gives_everything_back(engine, transport, how):
    conversation = transport.session(REQUESTS + "Session")
    conversation.send(SessionRequest(options={}))
    next(conversation)
    assert len(engine.sessions) == 1
    conversation.cancel(**how)
    conversation.cancel(**how)
    with pytest.raises(CallError) as caught:
        next(conversation)
    assert code(caught) is grpc.StatusCode.CANCELLED
    assert len(engine.sessions) == 0


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(TypeError, match=r'^Client\("inprocess:"\) has no keyword "nam"; did you mean name'):
        connect(nam="e1")
    with pytest.raises(ValueError, match="thread"):
        connect(core="fiber")
    with pytest.raises(ValueError, match='mine: functions need core = "thread"'):
        connect(core="process", logits_processors={"mine": print})
