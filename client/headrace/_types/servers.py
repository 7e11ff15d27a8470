"""Servers and their engines, and what they make of a text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headrace._types.requests import ConfigWarning


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine, as reported by its gateway.

    Attributes:
        engine: name of the engine, as in `engine_ids`.
        reachable: True if it answers the gateway.
        instance_id: id of its running instance; "": never reached.
        draining: True if it accepts no new requests and will shut down.
        api_version: version of its contract.
        build: version and commit of its program.
    """

    engine: str
    reachable: bool
    instance_id: str
    draining: bool
    api_version: str
    build: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Name, version and features of a server.

    Attributes:
        role: "ENGINE" or "GATEWAY".
        name: name of the server.
        instance_id: id of the running instance.
        api_version: version of the contract, such as "1.0".
        build: version and commit of the program.
        features: supported parts of the contract, such as "session" or "embed".
        start_time: time at which it was started; None if unknown.
        devices: names of the devices; engines only.
        core_epoch: number of core starts, from 1; engines only.
        draining: True if it accepts no new requests and will shut down.
        engines: the engines of a gateway.
    """

    role: str
    name: str
    instance_id: str
    api_version: str
    build: str
    features: tuple[str, ...]
    start_time: datetime | None
    devices: tuple[str, ...]
    core_epoch: int
    draining: bool
    engines: tuple[EngineInfo, ...]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The ids of a prompt.

    Attributes:
        ids: token ids, as `start_request` would use them.
        rendered_text: the text that was tokenized: the rendered chat, or the text itself.
        warnings: probable mistakes in the prompt.
    """

    ids: list[int]
    rendered_text: str
    warnings: tuple[ConfigWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Detokenized:
    """The text of token ids, and the bytes of each id (the name of a special token)."""

    text: str
    pieces: list[bytes]
