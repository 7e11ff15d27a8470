"""Options of the gateway's command line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace_proto.pure.addresses import Address, read_address
from headrace_proto.server.tls import Certificates

from headrace_gateway.engine_security import EngineSecurity

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class EngineAddress:
    """An engine in the gateway's list.

    Attributes:
        name: its name in handles and engine_ids.
        address: address it listens on.
    """

    name: str
    address: Address

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """Parse "NAME=host:port".

        Raises:
            ValueError: the name or the address is malformed.
        """
        name, separator, rest = text.partition("=")
        if not separator or not _NAME.fullmatch(name):
            raise ValueError(
                f'"{text:.100}" names no engine: write NAME=HOST:PORT; a name has letters, digits, ".", "_" and "-"'
            )
        try:
            return cls(name, read_address(rest, least_port=1))
        except ValueError as error:
            raise ValueError(f'address of engine "{text:.100}" cannot be parsed: {error}') from None


def parse_engines(texts: Sequence[str]) -> tuple[EngineAddress, ...]:
    """Parse several "NAME=host:port", with distinct names and addresses.

    Raises:
        ValueError: one is malformed, or given twice.
    """
    engines = tuple(map(EngineAddress.parse, texts))
    check_distinct(engines)
    return engines


def check_distinct(engines: Sequence[EngineAddress]) -> None:
    """Raise ValueError for a name or an address that is given twice."""
    _refuse_twice("engine name", [engine.name for engine in engines])
    _refuse_twice("engine address", [str(engine.address) for engine in engines])


@dataclass(frozen=True)
class GatewayOptions:
    """Options of a gateway. The engines come from exactly one of `engines`, `engines_file` and `engines_dns`.

    Attributes:
        listen: address to listen on for gRPC.
        http: address to listen on for HTTP; None: no HTTP.
        engines: engines whose list does not change; names and addresses are distinct.
        engines_file: file with a line NAME=HOST:PORT for each engine, which is watched.
        engines_dns: name and port, each of whose addresses is an engine; asked for again and again.
        name: name that GetServerInfo reports.
        drain_limit: seconds that calls in progress have to end after SIGTERM.
        poll_interval: seconds between health polls of an engine.
        poll_timeout: seconds after which an engine that does not answer counts as unreachable.
        reflection: serve gRPC reflection.
        affinity: prefer the engine that has computed the beginning of a prompt.
        spares: names of engines that get a request only where no other takes it.
        certificates: for TLS; None: no encryption.
        engine_security: how engines and the gateway prove themselves to each other.
        keys_file: file of the API keys; None: everyone may call.
        log_json: log JSON rather than readable lines.
        log_level: minimum level of events.
    """

    listen: Address
    engines: tuple[EngineAddress, ...] = ()
    engines_file: Path | None = None
    engines_dns: Address | None = None
    http: Address | None = None
    name: str = "gateway"
    drain_limit: float = 30.0
    poll_interval: float = 1.0
    poll_timeout: float = 3.0
    reflection: bool = True
    affinity: bool = True
    spares: tuple[str, ...] = ()
    certificates: Certificates | None = None
    engine_security: EngineSecurity = field(default_factory=EngineSecurity)
    keys_file: Path | None = None
    log_json: bool = True
    log_level: str = "info"

    def __post_init__(self) -> None:
        sources = (bool(self.engines), self.engines_file is not None, self.engines_dns is not None)
        if sum(sources) != 1:
            raise ValueError("a gateway needs its engines from one of --engine, --engines-file and --engines-dns")
        check_distinct(self.engines)
        self._check_spares()

    def _check_spares(self) -> None:
        _refuse_twice("spare engine", list(self.spares))
        listed = {engine.name for engine in self.engines}
        for name in self.spares:
            if not _NAME.fullmatch(name) or (listed and name not in listed):
                raise ValueError(f'--spare: there is no engine "{name:.100}"')


def _refuse_twice(what: str, values: list[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise ValueError(f'{what} "{value}" is given twice')
