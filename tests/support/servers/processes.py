"""Real servers as processes on loopback, each on a port of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.clocks.waiting import LIMIT
from support.servers.gate import Gate

_TIED = str(Path(__file__).parents[3] / "deploy" / "tied.py")
ANY_ROOT = ("--model-root", "/", "--write-root", "/")
"""Arguments that let callers of an engine name any path, also for writing."""

LAST_EVENTS = 20
"""Events of a log that are shown of a server that has ended."""

_CORE_PROGRAMS = ("headrace_engine.process", "gated_core.py", "fallible_engine.py")


@dataclass
class Server:
    """A running server.

    Attributes:
        process: its process.
        events: events logged so far, as dicts.
    """

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list, repr=False)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def address(self) -> str:
        """Return host:port that it listens on. Fails where it has ended, so that nobody waits for its answers."""
        self.check()
        return str(self.wait_event("listening")["address"])

    def check(self) -> None:
        """Fail if it has ended, with its exit status and the end of its log."""
        status = self.process.poll()
        if status is not None:
            last = "\n".join(json.dumps(event) for event in self.events[-LAST_EVENTS:])
            raise AssertionError(f"the server has ended with status {status}; its last events:\n{last}")

    def wait_event(self, name: str, seconds: float = LIMIT, **fields: Any) -> dict[str, Any]:
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
        """Return the whole log."""
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
        """Stop the server and wait until it is gone."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running(*command: str) -> Iterator[Server]:
    """Run Python with these arguments as a server; yield it once it listens. It always ends with the tests."""
    line = [sys.executable, "-I", "-S", _TIED, str(os.getpid()), *command]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
    server = Server(process)
    follower = threading.Thread(target=server.follow, daemon=True)
    follower.start()
    try:
        server.wait_event("listening")
        yield server
    finally:
        server.stop()
        follower.join(LIMIT)
        assert process.stderr is not None
        process.stderr.close()


def engine_server(name: str, *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """Run an engine service; callers may install from any path, unless the arguments name model roots."""
    return running("-m", "headrace_engine", "--name", name, "--listen", "127.0.0.1:0", *_with_root(arguments))


def simulated_engine(name: str, *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """Run the same with cores on the simulated device."""
    program = str(Path(__file__).parents[1] / "sim" / "engine.py")
    return running(program, "--name", name, "--listen", "127.0.0.1:0", *_with_root(arguments))


def engine_on_a_card(name: str, gate: Gate, card: Path, *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """Run an engine service on a simulated card, which is there as long as a file is; its steps wait at a gate."""
    program = str(Path(__file__).parents[1] / "sim" / "fallible_engine.py")
    patient = ("--core-ping-limit", "600", "--stream-interval", "0", *ANY_ROOT)
    listen = ("--name", name, "--listen", "127.0.0.1:0")
    return running(program, str(gate.path), str(card), *listen, *patient, *arguments)


def _with_root(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return arguments if "--model-root" in arguments else (*ANY_ROOT, *arguments)


@contextlib.contextmanager
def gated_engine_server(name: str, gate: Gate, *arguments: str) -> Iterator[Server]:
    """Run an engine service whose cores step as a gate allows; one at a shut gate does not count as lost.

    Tokens are sent at once, without waiting for those of a step at the gate.
    """
    patient = ("--core-ping-limit", "600", "--stream-interval", "0", *ANY_ROOT)
    program = str(Path(__file__).with_name("gated_engine.py"))
    with running(program, str(gate.path), "--name", name, "--listen", "127.0.0.1:0", *patient, *arguments) as server:
        try:
            yield server
        finally:
            gate.open()


def gateway_server(engines: Mapping[str, str], *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """Run a gateway in front of engines: address by name."""
    listed = [part for name, address in engines.items() for part in ("--engine", f"{name}={address}")]
    return running("-m", "headrace_gateway", "--listen", "127.0.0.1:0", *listed, *arguments)


def core_of(server: Server) -> psutil.Process:
    """Return the core process of an engine service's only model."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(child for child in children if any(part.endswith(_CORE_PROGRAMS) for part in child.cmdline()))


def health_of(address: str, service: str = "") -> str:
    """Return the standard health of a service, by name."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
