"""Bodies of requests: read in turn, parsed strictly, and converted to structs. Nothing in them is ignored."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from headrace_proto.pure.daemon_thread import in_daemon
from headrace_proto.pure.limits import MAX_REQUEST_BYTES
from headrace_proto.pure.strict_json import BadJson, NestedTooDeep, read_json
from headrace_proto.server.intake import READ_SECONDS, Intake, NoMessage
from starlette.requests import ClientDisconnect, Request

from headrace_gateway.http.failures import Failure, invalid
from headrace_gateway.http.turns import Turns

T = TypeVar("T", bound=msgspec.Struct)
A = TypeVar("A")
R = TypeVar("R")

MAX_DEPTH = 100
"""Lists and objects that may be nested in a body."""

MAX_COUNT = 65_536
"""Lists and objects of a body: more than the parts of the largest chat that engines take."""

MAX_MESSAGES = 16_384
"""Messages of a chat: as many as engines take. More would be converted only to be refused there."""

MAX_PARSERS = 2
"""Large bodies that are parsed at once."""

MAX_CONVERTERS = 2
"""Large messages that are converted from or to their JSON form at once: it takes several times as long as to parse."""

MAX_WAITING = 64
"""Large messages that wait to be parsed, and as many to be converted; parties share them."""

_LARGE = 64 << 10
"""Bytes of a body that is parsed in a thread, so that streams go on."""

_PATH = re.compile(r" - at `\$?\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_SHOWN = 64
"""Characters of a name that an error repeats."""


class Bodies(Intake):
    """Reads bodies in turn, and parses large ones in a few threads.

    Args:
        seconds: time that a body may take to arrive.
    """

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        super().__init__(seconds=seconds)
        self._parsers = Turns(MAX_PARSERS, MAX_WAITING)
        self._converters = Turns(MAX_CONVERTERS, MAX_WAITING)

    async def parse(self, party: str, body: bytes) -> dict[str, Any]:
        """Parse a large body, once a thread is free and it is its party's turn. Raises Failure as `read_object`."""
        async with self._parsers.turn(party):
            return await in_daemon(_parsed, body)

    async def convert(self, party: str, work: Callable[[A], R], message: A) -> R:
        """Convert a large message by `work`, once a thread is free and it is its party's turn.

        Raises:
            Failure: 429, too many of the party's wait.
        """
        async with self._converters.turn(party):
            return await in_daemon(work, message)


async def read_object(request: Request, bodies: Bodies, peer: str, party: str) -> dict[str, Any]:
    """Return a request's body, a JSON object.

    Args:
        request: the request.
        bodies: bounds the bodies that are read and parsed at once.
        peer: whose share of it the body takes.
        party: whose turn it is to have a large body parsed.

    Raises:
        Failure: the body is no JSON object, too large, or too slow; a key is given twice; a number is out of range;
            429, too many of the party's wait.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = f'the body is of type "{kind[:_SHOWN]}"; send JSON, with the header content-type: application/json'
        raise Failure(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text, "unsupported_media_type", close=True)
    try:
        body = await bodies.read(peer, _whole(request))
    except NoMessage as error:
        text = f"the body did not arrive: {error}"
        raise Failure(HTTPStatus.REQUEST_TIMEOUT, text, "request_timeout", close=True) from None
    return await bodies.parse(party, body) if len(body) > _LARGE else _parsed(body)


async def _whole(request: Request) -> AsyncIterator[bytes]:
    """Yield the whole body once."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > MAX_REQUEST_BYTES:
                text = f"the body has more than {MAX_REQUEST_BYTES} bytes, which is the most that is read"
                raise Failure(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "request_too_large", close=True)
    except ClientDisconnect:
        raise asyncio.CancelledError from None
    yield b"".join(parts)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = read_json(body.decode())
    except UnicodeDecodeError as error:
        raise _not_json(f"is not JSON: {error}") from None
    except NestedTooDeep:
        raise _too_deep() from None
    except BadJson as error:
        if error.path:
            raise invalid(error.path, "is given twice in one object", "invalid_json") from None
        raise _not_json(str(error)) from None
    if not isinstance(value, dict):
        raise _not_json("is no object of JSON")
    _check_parts(value)
    return value


def _check_parts(value: dict[str, Any]) -> None:
    """Refuse a body of many parts, each of which would cost the event loop more than the thread that parsed it."""
    level: list[Any] = [value]
    count = 1
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            inner += [
                part for part in (one.values() if isinstance(one, dict) else one) if isinstance(part, dict | list)
            ]
        if not inner:
            return
        level = inner
        count += len(inner)
        if count > MAX_COUNT:
            raise _not_json(f"has more than {MAX_COUNT} lists and objects")
    raise _too_deep()


def _too_deep() -> Failure:
    return _not_json(f"nests lists and objects more than {MAX_DEPTH} deep")


def _not_json(problem: str) -> Failure:
    return Failure(HTTPStatus.BAD_REQUEST, f"the body {problem}", "invalid_json")


def without_effect(given: dict[str, Any], harmless: Mapping[str, Any], refused: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a body that mean something: without nulls and what is known to change nothing.

    Args:
        given: the body.
        harmless: values by field that change nothing; None: any value.
        refused: why a field is not supported, by field.

    Raises:
        Failure: a field is not supported, or a harmless one has another value.
    """
    kept = {}
    for name, value in given.items():
        if value is None or (name in harmless and (harmless[name] is None or value in harmless[name])):
            continue
        if name in refused:
            raise invalid(name, f"is not supported{refused[name]}", "unsupported_parameter")
        if name in harmless:
            allowed = ", ".join(json.dumps(one) for one in harmless[name])
            shown = "…" if isinstance(value, dict | list) else json.dumps(value)[:_SHOWN]
            raise invalid(name, f"= {shown} is supported only as {allowed}", "unsupported_value")
        kept[name] = value
    return kept


def struct_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return a body as a struct.

    Raises:
        Failure: a field is unknown, missing, or of the wrong type; the failure names it.
    """
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None


def _named(text: str) -> Failure:
    """Return the failure of a conversion, with the path that msgspec's message ends with."""
    found = _PATH.search(text)
    path = "" if found is None else found["path"]
    what = text if found is None else text[: found.start()]
    if (missing := _MISSING.match(what)) is not None:
        return invalid(_joined(path, missing["name"]), "is missing", "missing_required_parameter")
    if (unknown := _UNKNOWN.match(what)) is not None:
        return invalid(_joined(path, unknown["name"])[: 2 * _SHOWN], "is not a known field", "unknown_parameter")
    shown = what if len(what) <= 4 * _SHOWN else f"{what[: 4 * _SHOWN]}…"  # It may quote a value.
    return invalid(path or "the body", f"is wrong: {shown[0].lower()}{shown[1:]}")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
