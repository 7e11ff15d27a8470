"""How the in-process transport begins in vain, and how it is closed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial

import pytest
from headrace import Client, UnavailableError
from headrace_engine.errors import NotFound
from headrace_engine.service.inprocess.transport import InProcessTransport
from headrace_proto.v1 import request_service_pb2
from headrace_proto.v1.session_pb2 import SessionRequest
from headrace_proto.wire.transport import CallError, client_closed
from support.clocks.waiting import LIMIT
from support.scripted.engine import ScriptedEngine, tokens
from unit.service.server.test_inprocess import GENERATE, REQUESTS


def test_closing_ends_conversations(engine):
    transport = InProcessTransport(lambda: engine)
    conversation = transport.session(REQUESTS + "Session")
    conversation.send(SessionRequest(options={}))
    next(conversation)
    transport.close()
    with pytest.raises(CallError):
        next(conversation)
    conversation.send(SessionRequest(ping={}))
    conversation.half_close()
    with pytest.raises(CallError):
        transport.session(REQUESTS + "Session")


def test_closing_ends_calls_in_progress_and_refuses_later_ones(engine):
    transport = InProcessTransport(lambda: engine)
    engine.script = [tokens(0, 5), asyncio.Event()]
    stream = transport.stream(REQUESTS + "Generate", GENERATE, timeout=None)
    next(stream)
    next(stream)
    transport.close()
    transport.close()
    assert engine.closed["generate"].is_set()
    assert engine.calls[-1] == ("close", ())
    with pytest.raises(CallError) as ended:
        next(stream)
    stream.cancel()
    with pytest.raises(CallError) as refused:
        transport.unary(REQUESTS + "StopRequest", request_service_pb2.StopRequestRequest(handle="x"), timeout=None)
    assert ended.value.status == refused.value.status == client_closed()


def test_closing_ends_what_goes_on_without_its_call(engine):
    """As a start does that was cut."""
    transport = InProcessTransport(lambda: engine)

    async def begin():
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        return task

    task = transport._run(begin())
    transport.close()
    assert task.cancelled()


@pytest.mark.parametrize("close", ["SyncRequest", "GetRequest"])
def test_closing_a_client_wakes_blocked_calls_without_retry(close):
    engine = ScriptedEngine()
    engine.get_request = lambda **arguments: engine.sync_request(handle=arguments["handle"])  # type: ignore[method-assign]
    client = Client(InProcessTransport(lambda: engine))
    asked, failures = threading.Event(), []
    engine.noted = asked.set
    call = {"SyncRequest": client.sync_request, "GetRequest": partial(client.get_request, wait=100)}[close]

    def block() -> None:
        try:
            call("h")
        except UnavailableError as error:
            failures.append(error.reason)

    thread = threading.Thread(target=block)
    thread.start()
    assert asked.wait(LIMIT)
    client.close()
    thread.join(LIMIT)
    assert failures == ["CLIENT_CLOSED"]


def test_an_engine_that_cannot_start_is_an_error_of_connecting(engine):
    engine.failures["start"] = NotFound("no such state directory")
    before = set(threading.enumerate())
    with pytest.raises(NotFound, match="no such state directory"):
        InProcessTransport(lambda: engine)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("headrace")]


AT_EXIT = """
import asyncio
from headrace_engine.service.inprocess.transport import InProcessTransport
from support.scripted.engine import ScriptedEngine

class Engine(ScriptedEngine):
    async def close(self):
        await asyncio.to_thread(print, "closed in a thread")

InProcessTransport(Engine)
print("left")
"""


def test_an_open_transport_is_closed_before_the_interpreter():
    """While there still are pool threads: ending a core takes one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run([sys.executable, "-c", AT_EXIT], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["left", "closed in a thread"]
    assert found.stderr == ""
