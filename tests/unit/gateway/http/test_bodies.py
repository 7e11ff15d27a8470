"""Bodies of HTTP requests: what is no JSON, or hides something, is refused by name."""

from __future__ import annotations

import asyncio
import json
import threading
from http import HTTPStatus
from typing import Any, Literal

import msgspec
import pytest
from headrace_gateway.http.anthropic.request import MessageRequest
from headrace_gateway.http.bodies import (
    MAX_CONVERTERS,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_MESSAGES,
    Bodies,
    read_object,
    struct_of,
    without_effect,
)
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.openai.chat_request import ChatRequest
from headrace_gateway.http.openai.fields import MAX_BIASES
from headrace_gateway.http.openai.responses.request import ResponseRequest
from headrace_proto.pure.limits import MAX_REQUEST_BYTES
from starlette.requests import Request

PEER, HOST = "ipv4:192.0.2.1:5000", "192.0.2.1"


def request_of(*parts: bytes, kind: str = "application/json") -> Request:
    """A request with a body in parts."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    return Request({"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}, receive)


async def read(*parts: bytes, **more: Any) -> dict[str, Any]:
    return await read_object(request_of(*parts, **more), Bodies(), PEER, HOST)


async def test_an_object_is_read_in_parts() -> None:
    assert await read(b'{"a": [1, 2.5, "\xc3\xa9', b'", null, true]}') == {"a": [1, 2.5, "é", None, True]}


async def test_a_large_object_is_read_whole() -> None:
    body = {"prompt": "river " * 100_000}
    assert await read(json.dumps(body).encode()) == body


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not JSON"),
        (b"[]", "no object"),
        (b"{", "is not JSON"),
        (b'{"a": 1} {}', "is not JSON"),
        (b'{"a": NaN}', "NaN, which is no number"),
        (b'{"a": -Infinity}', "-Infinity, which is no number"),
        (b'{"a": 1e999}', "1e999, which is out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"a": "\\ud800"}', "half a surrogate pair"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b'{"a": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}", "more than 100 deep"),
        (b"[" * 100_000, "more than 100 deep"),
        (b'{"a": [' + b"{}," * MAX_COUNT + b"{}]}", "more than 65536 lists and objects"),
        (b'{"a":' * 100_000, "more than 100 deep"),
    ],
)
async def test_what_is_no_plain_json_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(Failure, match=problem) as caught:
        await read(body)
    assert caught.value.code == HTTPStatus.BAD_REQUEST
    assert caught.value.reason == "invalid_json"


async def test_a_key_given_twice_is_named() -> None:
    with pytest.raises(Failure, match=r"a\.temperature is given twice") as caught:
        await read(b'{"a": {"temperature": 1, "x": 2, "temperature": 0}}')
    assert caught.value.field == "a.temperature"


async def test_what_nests_as_deep_as_allowed_is_read() -> None:
    await read(b'{"a": [' + b"{}," * (MAX_COUNT - 3) + b"{}]}")
    await read(b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}")


async def test_a_surrogate_pair_is_a_character() -> None:
    assert await read(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


async def test_another_media_type_is_refused() -> None:
    """As a page of any site could send it."""
    with pytest.raises(Failure) as caught:
        await read(b"{}", kind="text/plain")
    assert caught.value.code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE


async def test_a_body_beyond_the_limit_is_read_no_further() -> None:
    part = b" " * (MAX_REQUEST_BYTES // 2 + 1)
    request = request_of(part, part, part)
    with pytest.raises(Failure) as caught:
        await read_object(request, Bodies(), PEER, HOST)
    assert caught.value.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert caught.value.close


async def test_a_body_that_does_not_end_is_refused() -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    headers = [(b"content-type", b"application/json")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    with pytest.raises(Failure) as caught:
        await read_object(request, Bodies(seconds=0.01), PEER, HOST)
    assert caught.value.code == HTTPStatus.REQUEST_TIMEOUT


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    inner: list[Inner] = []


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({}, "name", "missing_required_parameter"),
        ({"name": 3}, "name", "invalid_value"),
        ({"name": "a", "colour": 1}, "colour", "unknown_parameter"),
        ({"name": "a", "inner": [{"size": 1}, {"size": "x"}]}, "inner[1].size", "invalid_value"),
        ({"name": "a", "inner": [{"size": 1, "weight": 2}]}, "inner[0].weight", "unknown_parameter"),
        ({"name": "a", "inner": [{}]}, "inner[0].size", "missing_required_parameter"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(given: Any, field: str, reason: str) -> None:
    with pytest.raises(Failure) as caught:
        struct_of(Outer, given)
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_a_wrong_value_is_quoted_in_short() -> None:
    class Chosen(msgspec.Struct):
        colour: Literal["red", "blue"]

    with pytest.raises(Failure, match="colour is wrong: invalid enum value 'gggg") as caught:
        struct_of(Chosen, {"colour": "g" * 1_000_000})
    assert len(str(caught.value)) < 1000


def test_nulls_and_harmless_values_are_left_out() -> None:
    given = {"a": 1, "b": None, "user": "me", "store": False}
    assert without_effect(given, {"user": None, "store": (False,)}, {}) == {"a": 1}
    with pytest.raises(Failure, match="store = true is supported only as false"):
        without_effect({"store": True}, {"store": (False,)}, {})
    with pytest.raises(Failure, match="tools is not supported: not yet"):
        without_effect({"tools": []}, {}, {"tools": ": not yet"})


@pytest.mark.parametrize(
    ("kind", "field", "given", "most"),
    [
        (ChatRequest, "messages", [{"role": "user"}] * (MAX_MESSAGES + 1), MAX_MESSAGES),
        (MessageRequest, "messages", [{"role": "user", "content": "a"}] * (MAX_MESSAGES + 1), MAX_MESSAGES),
        (ResponseRequest, "input", [{"role": "user", "content": "a"}] * (MAX_MESSAGES + 1), MAX_MESSAGES),
        (ChatRequest, "logit_bias", {str(number): 1.0 for number in range(MAX_BIASES + 1)}, MAX_BIASES),
    ],
)
def test_what_no_engine_takes_is_not_converted(kind: Any, field: str, given: Any, most: int) -> None:
    with pytest.raises(Failure, match=f"length <= {most}") as caught:
        struct_of(
            kind, {"model": "m", **({} if kind is ResponseRequest else {"max_tokens": 1, "messages": []}), field: given}
        )
    assert caught.value.field == field


async def test_few_large_messages_are_converted_at_once() -> None:
    bodies, go, begun, numbers = Bodies(), threading.Event(), threading.Semaphore(0), list[int]()

    def work(number: int) -> int:
        numbers.append(number)
        begun.release()
        assert go.wait(30)
        return -number

    converting = [asyncio.create_task(bodies.convert(HOST, work, number)) for number in range(MAX_CONVERTERS + 3)]
    for _ in range(MAX_CONVERTERS):
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    await asyncio.sleep(0.02)
    assert len(numbers) == MAX_CONVERTERS
    go.set()
    assert await asyncio.gather(*converting) == [-number for number in range(MAX_CONVERTERS + 3)]
