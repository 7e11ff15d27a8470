"""Real servers as processes on loopback, each on a port of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc


@dataclass
class Server:
    """A running server.

    Attributes:
        process: its process.
        address: host:port that it listens on.
        events: what it logged so far, one dict an event.
    """

    process: subprocess.Popen[str]
    address: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def wait_event(self, name: str, seconds: float = 30.0, **fields: Any) -> dict[str, Any]:
        """Wait until an event with these fields was logged."""

        def found() -> dict[str, Any] | None:
            wanted = {"event": name, **fields}
            return next((event for event in self.events if wanted.items() <= event.items()), None)

        with self._news:
            assert self._news.wait_for(lambda: found() or self.process.poll() is not None, seconds), self.text
            event = found()
        assert event is not None, f"{name} was not logged; the server ended: {self.text}"
        return event

    @property
    def text(self) -> str:
        """All that was logged."""
        return "\n".join(json.dumps(event) for event in self.events)

    def follow(self) -> None:
        """Read what the server logs, until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "", "line": line.rstrip()}
            with self._news:
                self.events.append(event)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def stop(self) -> None:
        """End the server and wait until it is gone."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running(*command: str) -> Iterator[Server]:
    """A server of this command line, once it listens."""
    line = [sys.executable, "-m", *command]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
    server = Server(process)
    follower = threading.Thread(target=server.follow, daemon=True)
    follower.start()
    try:
        server.address = server.wait_event("listening")["address"]
        yield server
    finally:
        server.stop()
        follower.join(5)
        assert process.stderr is not None
        process.stderr.close()


def engine_server(name: str, *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """An engine service."""
    return running("headrace_engine", "--name", name, "--listen", "127.0.0.1:0", *arguments)


def gateway_server(engines: Mapping[str, str], *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """A gateway in front of engines: address by name."""
    listed = [part for name, address in engines.items() for part in ("--engine", f"{name}={address}")]
    return running("headrace_gateway", "--listen", "127.0.0.1:0", *listed, *arguments)


def core_of(server: Server) -> psutil.Process:
    """The process of the core of an engine service's one model."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(child for child in children if any("headrace_engine.process" in part for part in child.cmdline()))


def health_of(address: str, service: str = "") -> str:
    """What standard health says of a service, by name."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
