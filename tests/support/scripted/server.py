"""A server on a real gRPC port with scripted replies: calls without a script fail, and so do replies left unused."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from headrace._transport.methods import CONVERSATIONS, METHODS
from headrace_proto.v1 import session_pb2

from support.clocks.waiting import LIMIT
from support.scripted.replies import Failure, Reply, fail, play
from support.scripted.session import FOR_EVER, ScriptedSession
from support.servers.ports import free_port

SERVER_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
]


@dataclass
class _Entry:
    reply: Reply
    when: Callable[[Any], bool] = field(default=lambda request: True)


class ScriptedServer:
    """Answers each method with the replies scripted for it, in order.

    A reply is an answer, a Failure, an exception (a handler with a bug), a function of the request, or for a stream
    the list of its steps: answers, Failures, exceptions, events to wait for, functions to call, Hang. In a session each
    channel plays the steps scripted for GeneratedElements; a Failure scripted for Session itself ends one, and the
    one set as `session_refusal` ends all others.

    Args:
        workers: number of threads.
        sessions: serve sessions.
    """

    def __init__(self, workers: int = 24, *, sessions: bool = True) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.faults: list[str] = []
        self.live_streams = 0
        self.port = free_port()
        self.sessions: list[ScriptedSession] = []
        self.said: list[session_pb2.SessionRequest] = []
        self.session_times = (FOR_EVER, FOR_EVER)
        self.session_refusal: Failure | None = None
        self.answers_pings = True
        self._offers_sessions = sessions
        self._script: dict[str, list[_Entry]] = defaultdict(list)
        self._held: set[str] = set()
        self._changed = threading.Condition()
        self._workers = workers
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        """Address that it listens on."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> ScriptedServer:
        """Listen; after a stop, on the same port again."""
        self._server = grpc.server(futures.ThreadPoolExecutor(self._workers), options=SERVER_OPTIONS)
        services: dict[str, dict[str, grpc.RpcMethodHandler]] = defaultdict(dict)
        for name, method in METHODS.items():
            service, short = name.split("/")
            make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
            services[service][short] = make(
                self._streaming(short) if method.streams else self._single(short),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
        if self._offers_sessions:
            services["headrace.v1.RequestService"]["Session"] = self._conversing()
        for service, handlers in services.items():
            handler = grpc.method_handlers_generic_handler(service, handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(self.address)
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop, and cut all streams."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def cut_sessions(self, failure: Failure | None = None) -> None:
        """Cut all open session streams."""
        with self._changed:
            sessions, self.sessions = self.sessions, []
        for session in sessions:
            session.end(None if failure is None else lambda context: fail(failure, context))

    def take_leave(self) -> None:
        """Send `closing` on all open session streams; the server itself stays up."""
        with self._changed:
            sessions, self.sessions = self.sessions, []
        for session in sessions:
            session.say_goodbye()

    def expect(self, method: str, *replies: Reply, when: Callable[[Any], bool] | None = None) -> None:
        """Script the next replies of a method; with `when`, only for requests for which it is true."""
        with self._changed:
            self._script[method] += [_Entry(reply, when) if when else _Entry(reply) for reply in replies]

    def hold(self, method: str) -> None:
        """From now on, let no call of a method return; none is required to come."""
        self._held.add(method)

    def requests(self, method: str) -> list[Any]:
        """Return the requests of a method so far."""
        with self._changed:
            return [request for name, request in self.calls if name == method]

    def wait_for(self, method: str, count: int = 1, seconds: float = LIMIT) -> list[Any]:
        """Wait until a method was called `count` times."""
        self._wait(lambda: len([1 for name, _ in self.calls if name == method]) >= count, seconds, f"{count} {method}")
        return self.requests(method)

    def wait_for_streams(self, count: int, seconds: float = LIMIT) -> None:
        """Wait until `count` streams are open."""
        self._wait(lambda: self.live_streams == count, seconds, f"{count} open streams")

    def check(self) -> None:
        """Assert that all scripted replies were used, and that no other calls came."""
        with self._changed:
            left = {method: len(entries) for method, entries in self._script.items() if entries}
        assert not self.faults, self.faults
        assert not left, f"scripted and not asked for: {left}"

    def _wait(self, what: Callable[[], bool], seconds: float, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(what, seconds), f"no {name} within {seconds} s: {self.calls}"

    def _next(self, method: str, request: Any) -> Reply:
        with self._changed:
            self.calls.append((method, request))
            self._changed.notify_all()
            entries = self._script[method]
            for entry in entries:
                if entry.when(request):
                    entries.remove(entry)
                    return entry.reply
            self.faults.append(f"{method} was not scripted: {request}")
        return Failure(grpc.StatusCode.INTERNAL, f"{method} was not scripted", reason="ENGINE_FAULT")

    def _single(self, method: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            if method in self._held:
                gone = threading.Event()
                if context.add_callback(gone.set):
                    gone.wait()
                context.abort(grpc.StatusCode.CANCELLED, "nobody waits any more")
            reply = self._next(method, request)
            if callable(reply):
                reply = reply(request)
            if isinstance(reply, Exception):
                raise reply
            return fail(reply, context) if isinstance(reply, Failure) else reply

        return handle

    def _streaming(self, method: str) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def handle(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            reply = self._next(method, request)
            steps = reply(request) if callable(reply) else reply
            gone = threading.Event()
            context.add_callback(gone.set)
            self._count(+1)
            try:
                for step in steps if isinstance(steps, list) else [steps]:
                    yield from play(step, context, gone)
            finally:
                self._count(-1)

        return handle

    def _conversing(self) -> grpc.RpcMethodHandler:
        def handle(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._changed:
                script = self._script["Session"]
                failure = script.pop(0).reply if script else self.session_refusal
                session = ScriptedSession(self, context)
                if failure is None:
                    self.sessions.append(session)
                self._changed.notify_all()
            if isinstance(failure, Failure):
                fail(failure, context)
            return session.answers(requests)

        method = CONVERSATIONS["headrace.v1.RequestService/Session"]
        return grpc.stream_stream_rpc_method_handler(
            handle,
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )

    def next_steps(self, request: Any) -> list[Any]:
        """Return the steps that a stream for this request plays."""
        reply = self._next("GeneratedElements", request)
        steps = reply(request) if callable(reply) else reply
        return steps if isinstance(steps, list) else [steps]

    def note(self, request: session_pb2.SessionRequest) -> None:
        """Record a message of a session."""
        with self._changed:
            self.said.append(request)
            self._changed.notify_all()

    def wait_until_said(self, what: Callable[[session_pb2.SessionRequest], bool], count: int = 1) -> None:
        """Wait until `count` matching messages came in sessions."""
        self._wait(lambda: len([1 for request in self.said if what(request)]) >= count, LIMIT, "such message")

    def count_stream(self, change: int) -> None:
        """Count a channel of a session that begins or ends."""
        self._count(change)

    def _count(self, change: int) -> None:
        with self._changed:
            self.live_streams += change
            self._changed.notify_all()
