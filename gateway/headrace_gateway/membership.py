"""Where the gateway's list of engines comes from: the command line, a file that is watched, or names in DNS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from headrace_proto.pure.addresses import Address
from headrace_proto.pure.daemon_thread import in_daemon
from headrace_proto.server.logs import logger

from headrace_gateway.options import EngineAddress, GatewayOptions, parse_engines

log = logger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at a file, or two questions to DNS."""

LONGEST_FILE = 2**16
"""Maximum size of a file with engines, in bytes."""

_PATIENCE = 5.0

_Result = TypeVar("_Result")

Apply = Callable[[Sequence[EngineAddress]], None]


class Membership(Protocol):
    """A source of the list of engines."""

    async def follow(self, apply: Apply) -> None:
        """Pass on the list, and again whenever it has changed, until cancelled.

        A source that cannot be read, or is malformed, changes nothing: the last list holds, and the log says why.
        """


class StaticMembership:
    """A list that never changes.

    Args:
        engines: the engines.
    """

    def __init__(self, engines: Sequence[EngineAddress]) -> None:
        self._engines = engines

    async def follow(self, apply: Apply) -> None:
        """Pass on the list, once."""
        apply(self._engines)


class _OneAtATime(Generic[_Result]):
    """Blocking work, done in one thread at a time.

    A file system or a resolver that hangs costs one thread, which does not hold up the end of the process.

    Args:
        work: the work.
    """

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._doing: asyncio.Task[_Result] | None = None

    async def get(self) -> _Result:
        """Return the result of the work that is being done, else begin it. Raises as the work does."""
        self._doing = self._doing or asyncio.create_task(in_daemon(self._work))
        try:
            return await asyncio.shield(self._doing)
        finally:
            if self._doing.done():
                self._doing = None


class Watched:
    """A list that is read again at an interval; the base of those that change.

    Args:
        interval: seconds between two readings.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._last: tuple[EngineAddress, ...] | None = None
        self._problem = ""

    async def read(self) -> tuple[EngineAddress, ...]:
        """Return the list. Raise OSError or ValueError if it cannot be read."""
        raise NotImplementedError

    async def follow(self, apply: Apply) -> None:
        """Pass on the list, and again whenever it has changed, until cancelled."""
        while True:
            await self._look(apply)
            await asyncio.sleep(self._interval)

    async def _look(self, apply: Apply) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                engines = await self.read()
        except (OSError, ValueError) as error:  # TimeoutError is an OSError.
            problem = str(error) or type(error).__name__
            if problem != self._problem:
                log.warning("engines_unknown", source=str(self), problem=problem)
            self._problem = problem
            return
        self._problem = ""
        if engines != self._last:
            self._last = engines
            apply(engines)


class FileMembership(Watched):
    """A file with a line NAME=HOST:PORT for each engine; empty lines and those that begin with # say nothing.

    Args:
        path: the file. Replace it as a whole (write another one, then rename it), or a half is read.
        interval: seconds between two readings.
    """

    def __init__(self, path: Path, interval: float = INTERVAL) -> None:
        super().__init__(interval)
        self._path = path
        self._text = _OneAtATime(self._read)

    def __str__(self) -> str:
        return str(self._path)

    async def read(self) -> tuple[EngineAddress, ...]:
        """Return the list. Raise OSError or ValueError if it cannot be read, or names no engine.

        All engines never leave at once by it: a file without any is more likely one that is being written.
        """
        lines = [line.strip() for line in (await self._text.get()).splitlines()]
        engines = parse_engines([line for line in lines if line and not line.startswith("#")])
        if not engines:
            raise ValueError("the file names no engine: the last list holds")
        return engines

    def _read(self) -> str:
        with self._path.open("rb") as file:  # Perhaps a device without an end: its size says nothing.
            content = file.read(LONGEST_FILE + 1)
        if len(content) > LONGEST_FILE:
            raise ValueError(f"the file has more than {LONGEST_FILE} bytes, the most that is read")
        return content.decode()


class DnsMembership(Watched):
    """The addresses of a name: each is an engine, called after its address, so that all gateways call it the same.

    Args:
        target: name and port, such as those of a headless service.
        interval: seconds between two questions.
    """

    def __init__(self, target: Address, interval: float = INTERVAL) -> None:
        super().__init__(interval)
        self._target = target
        self._found = _OneAtATime(self._look_up)

    def __str__(self) -> str:
        return str(self._target)

    async def read(self) -> tuple[EngineAddress, ...]:
        """Return the list. Raise OSError if the name has no address."""
        hosts = await self._found.get()
        return tuple(EngineAddress(name_of(host), Address(host, self._target.port)) for host in hosts)

    def _look_up(self) -> list[str]:
        found = socket.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in found})


def name_of(host: str) -> str:
    """Return the name of an engine that is known by its address alone."""
    return "ip-" + host.replace(":", "-").replace("%", "-").replace(".", "-")


def membership_of(options: GatewayOptions) -> Membership:
    """Return the source that the command line names."""
    if options.engines_file is not None:
        return FileMembership(options.engines_file)
    if options.engines_dns is not None:
        return DnsMembership(options.engines_dns)
    return StaticMembership(options.engines)
