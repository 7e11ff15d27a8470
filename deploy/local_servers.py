"""The servers of `make run`: processes that listen on loopback, and end with the process that started them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from terminal import Step, print_about

HOST = "127.0.0.1"
DRAIN_LIMIT = 5
"""Seconds that requests of other programs may take at the end, before the engine ends them."""

_LONGER = 3
"""Further seconds that the gateway waits, so that it can forward the ends of requests."""

_GRACE = 10.0
"""Seconds after SIGTERM until a server is killed."""

_LAST_GRACE = 5.0
"""Seconds that the system may take to end a killed server."""

_TIED = str(Path(__file__).with_name("tied.py"))
_WARNINGS, _ERRORS = ("warning",), ("error", "critical")
_ABOUT = ("event", "level", "timestamp", "engine", "logger")


class LocalError(Exception):
    """An error that the user at the terminal can act on."""


class Server:
    """A server process of ours.

    Args:
        name: its name in messages.
        command: module and arguments.
        gone: set when it ends.
    """

    def __init__(self, name: str, command: Sequence[str], gone: threading.Event) -> None:
        self.name = name
        # -I -S: without site and user settings, the interpreter ties the process and becomes the server sooner.
        line = [sys.executable, "-I", "-S", _TIED, str(os.getpid()), "-m", *command]
        self._process = subprocess.Popen(
            line, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
        )
        self._gone = gone
        self._ending = False
        self._errors: list[str] = []
        self._address: str | None = None
        self._http: str | None = None
        self._listening = threading.Event()
        self._ended = threading.Event()
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def address(self) -> str:
        """host:port, once it listens.

        Raises:
            LocalError: it does not start.
        """
        with Step(self.name, "starting"):
            self._listening.wait()
        if self._address is None:
            raise LocalError(f"{self.name} did not start: {'; '.join(self._errors[-3:]) or self.manner_of_end}")
        also = "" if self._http is None else f" (gRPC) and {self._http} (HTTP)"
        print_about(self.name, f"listening on {self._address}{also}")
        return self._address

    @property
    def ended(self) -> bool:
        """True if the process is gone."""
        return self._ended.is_set()

    @property
    def manner_of_end(self) -> str:
        """Description of how it ended."""
        status = self._process.returncode
        return f"exit status {status}" if status is None or status >= 0 else f"killed by {signal.Signals(-status).name}"

    def ask_to_end(self) -> None:
        """Send SIGTERM: it refuses new requests, lets others finish within DRAIN_LIMIT, and ends."""
        self._ending = True
        self._process.terminate()

    def see_off(self, seconds: float) -> None:
        """Wait for the end, and kill the process if it does not come in time."""
        if not self._ended.wait(seconds):
            print_about(self.name, f"did not end in {_GRACE:.0f} s: killing it")
            self._process.kill()
            self._ended.wait(_LAST_GRACE)  # A process blocked in the kernel outlives even that.

    def _wait(self) -> None:
        self._process.wait()
        self._follower.join(1.0)  # For its last log lines. A core may hold the pipe open a little longer.
        self._ended.set()
        self._listening.set()
        self._gone.set()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._note(line.rstrip())

    def _note(self, line: str) -> None:
        event = _event(line)
        if event.get("event") == "listening":
            self._address, self._http = event["address"], event.get("http")
            self._listening.set()
        elif event.get("event") == "draining" and (event.get("requests") or event.get("streams")):
            print_about(self.name, draining(event))
        elif event.get("level") in (_ERRORS if self._ending else _WARNINGS + _ERRORS):
            self._errors.append(sentence(event))
            if self._listening.is_set():  # Before that, the reader of `address` raises it.
                print_about(self.name, sentence(event))


def _event(line: str) -> Mapping[str, Any]:
    """Parse a line of a server's log; other text, such as a traceback, counts as an error."""
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return {"event": line, "level": "info" if line.startswith("INFO ") else "error"}


def draining(event: Mapping[str, Any]) -> str:
    """Describe what a draining server waits for, and how long."""
    waited = [
        f"{event[key]} {key if event[key] > 1 else key[:-1]}" for key in ("requests", "streams") if event.get(key)
    ]
    return f"waiting for {' and '.join(waited)}, at most {event['limit_s']:g} s"


def sentence(event: Mapping[str, Any]) -> str:
    """Return an event of a log as readable text: its name and its fields."""
    facts = [
        str(value) if key in ("reason", "failure", "message") else f"{key} {value}"
        for key, value in event.items()
        if key not in _ABOUT
    ]
    name = str(event["event"])
    words = name.replace("_", " ") if name.isidentifier() else name
    return f"{words}: {', '.join(facts)}" if facts else words


def refuse_taken(ports: Mapping[str, int]) -> None:
    """Check that ports are free; servers check again when they bind them.

    Args:
        ports: number by the name of the setting that chooses it; 0 is always free.

    Raises:
        LocalError: a port is not free; says what to do.
    """
    numbers = [port for port in ports.values() if port]
    if len(numbers) > len(set(numbers)):
        raise LocalError(f"{' and '.join(ports)} are both {numbers[0]}: give each a port of its own")
    wrong = {name: reason for name, port in ports.items() if (reason := _refusal(port))}
    if not wrong:
        return
    what = " and ".join(f"port {ports[name]} ({name}) {reason}" for name, reason in wrong.items())
    others = " ".join(f"{name}=0" for name in wrong)
    raise LocalError(f"{what}: end what has it, or choose another: make run {others} (0 takes a free one)")


def _refusal(port: int) -> str:
    """Return why a port cannot be listened on; "" if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is in use, by another `make run` or `docker compose up` perhaps"
            return f"cannot be had ({error.strerror})"
    return ""


@contextlib.contextmanager
def servers(
    engine_port: int, gateway_port: int, engine_arguments: Sequence[str] = (), http_port: int | None = None
) -> Iterator[tuple[str, threading.Event]]:
    """Run an engine and a gateway; yield the gateway's address, and an event that is set when either ends.

    Args:
        engine_arguments: further arguments of the engine's command line.
        http_port: port of the gateway's HTTP; None: it serves none.

    Raises:
        LocalError: a server does not start.
    """
    gone = threading.Event()
    started: list[Server] = []
    try:
        engine = ("headrace_engine", "--name=e1", f"--listen={HOST}:{engine_port}", *_limit(0), *engine_arguments)
        started.append(Server("engine e1", engine, gone))
        address = started[0].address
        listen = [f"--listen={HOST}:{gateway_port}", *([] if http_port is None else [f"--http={HOST}:{http_port}"])]
        gateway = ("headrace_gateway", f"--engine=e1={address}", *listen, *_limit(_LONGER))
        started.append(Server("gateway", gateway, gone))
        try:
            yield started[1].address, gone
        except Exception:
            _report_ended(started)  # The cause of whatever failed here.
            raise
        _report_ended(started)
    finally:
        _end(started)


def _limit(longer: int) -> tuple[str, ...]:
    return (f"--drain-limit={DRAIN_LIMIT + longer}",)


def _report_ended(started: Sequence[Server]) -> None:
    """Raise LocalError for a server that ended by itself."""
    for server in started:
        if server.ended:
            raise LocalError(f"{server.name} ended: {server.manner_of_end}") from None


def _end(started: Sequence[Server]) -> None:
    running = [server for server in started if not server.ended]
    if not running:
        return
    names = " and ".join(server.name for server in running)
    print_about("headrace:", f"stopping: waiting for {names}, at most {_GRACE:.0f} s; Ctrl-C ends them at once")
    limit = time.monotonic() + _GRACE
    for server in running:
        server.ask_to_end()
    for server in running:
        server.see_off(max(0.0, limit - time.monotonic()))
    print_about("headrace:", "stopped")
