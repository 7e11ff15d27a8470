"""Whose requests are whose, through real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from headrace import Client, ResultQueue
from headrace.errors import AuthError, NotFoundError
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2, session_pb2
from support.clocks.waiting import LIMIT

from .conftest import MODEL, Secured

Connected = Callable[[str], Client]


def read(queue: ResultQueue) -> list[int]:
    """All ids of a queue, to its end."""
    ids: list[int] = []
    while (element := queue.Get()) is not None:
        ids += element.ids_from_generate
    return ids


def test_a_request_exists_for_its_owner_alone(connected: Connected) -> None:
    web, job, app = map(connected, ("web", "job", "app"))
    _, queue = web.start_request(MODEL, "Hello", max_new_tokens=5, ignore_eos=True)
    ids = read(queue)
    assert len(ids) == 5
    handle = queue.handle
    assert [request.handle for request in job.list_requests()] == [handle]
    assert list(app.list_requests()) == []
    assert read(job.open_queue(handle)) == ids
    for call in (app.stop_request, lambda one: read(app.open_queue(one))):
        with pytest.raises(NotFoundError):
            call(handle)
    app.release_request(handle)
    assert [request.handle for request in web.list_requests()] == [handle]
    job.release_request(handle)
    assert list(web.list_requests()) == []


METHODS = [
    method
    for module in (engine_service_pb2, model_service_pb2, request_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if "handle" in method.input_type.fields_by_name or method.name == "Session"
]


def refused_attach(call: Callable[..., Any], metadata: Any, handle: str) -> str:
    """Why a session may not read a handle."""
    over = threading.Event()

    def requests() -> Iterator[Any]:
        attach = session_pb2.Attach(channel=1, handle=handle)
        yield session_pb2.SessionRequest(options=session_pb2.SessionOptions(), attach=[attach])
        over.wait(LIMIT)

    session = call(requests(), metadata=metadata, timeout=LIMIT)
    try:
        error = next(error for message in session for error in message.errors)
    finally:
        over.set()
        session.cancel()
    assert error.status.code == grpc.StatusCode.NOT_FOUND.value[0]
    return str(error.status.message)


def told(secured: Secured, key: str, method: MethodDescriptor, handle: str) -> tuple[str, str]:
    """What a key is told of a handle by a method: code, and message."""
    metadata = (("authorization", f"Bearer {secured.keys[key]}"),)
    path = f"/{method.containing_service.full_name}/{method.name}"
    streams = ("unary", "stream")[method.client_streaming], ("unary", "stream")[method.server_streaming]
    request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    with grpc.secure_channel(secured.gateway.address, grpc.ssl_channel_credentials(secured.authority.root)) as channel:
        call = getattr(channel, "_".join(streams))(path, request.SerializeToString, answer.FromString)
        try:
            if method.name == "Session":
                return "NOT_FOUND", refused_attach(call, metadata, handle)
            found = call(request(handle=handle), metadata=metadata, timeout=LIMIT)
            list(found) if method.server_streaming else None
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


def test_another_owners_handle_is_as_one_that_never_was(secured: Secured, connected: Connected) -> None:
    """By every call that takes a handle; a release of it is answered as that of any text, and does nothing."""
    assert len(METHODS) >= 6
    _, queue = connected("web").start_request(MODEL, "Hello", max_new_tokens=3, ignore_eos=True)
    read(queue)
    never = queue.handle[:-8] + "00000000"
    for method in METHODS:
        outcome, expected = told(secured, "app", method, queue.handle), told(secured, "app", method, never)
        assert outcome[0] == ("OK" if method.name == "ReleaseRequest" else "NOT_FOUND"), method.name
        assert outcome == (expected[0], expected[1].replace(never, queue.handle)), method.name
    (own,) = [method for method in METHODS if method.name == "StopRequest"]
    assert told(secured, "job", own, queue.handle) == ("OK", "")
    connected("web").release_request(queue.handle)


def test_one_request_id_is_a_request_of_each_owner(connected: Connected) -> None:
    web, app = connected("web"), connected("app")
    queues = [
        one.start_request(
            MODEL, text, request_id="7d444840-9dc0-11d1-b245-5ffdce74fad2", max_new_tokens=2, ignore_eos=True
        )[1]
        for one, text in ((web, "One"), (app, "Another"))
    ]
    assert len({queue.handle for queue in queues}) == 2
    for queue, client in zip(queues, (web, app), strict=True):
        assert len(read(queue)) == 2
        client.release_request(queue.handle)


def test_use_and_administration_are_apart(connected: Connected) -> None:
    with pytest.raises(AuthError, match='API key "web" may not call'):
        connected("web").stop_model(MODEL)
    with pytest.raises(AuthError, match=f'API key "app" may not use model "other"; it may use: {MODEL}'):
        connected("app").start_request("other", "Hello")
    assert [model.model_name for model in connected("web").list_models()] == [MODEL]


def test_neither_keys_nor_secrets_are_logged(secured: Secured, connected: Connected) -> None:
    for name in ("web", "ops"):
        list(connected(name).list_models())
    logged = secured.gateway.text + secured.engine.text
    assert all(key not in logged for key in secured.keys.values())
    assert "c0ffee" not in logged
