"""The callers of `bench.service.crowd`: processes that read many streams, one request after the other on each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import httptools
from headrace import AsyncClient, RetryPolicy
from headrace.errors import HeadraceError, OverloadedError

from bench.service.crowd_script import Script
from bench.service.readers import MODEL
from bench.service.scripted_engine import id_of

SHORTEST, LONGEST = 20, 200
"""Tokens of a request."""

_KEPT = 5
"""Errors that are kept as texts."""


@dataclass(frozen=True)
class Part:
    """The part of one process.

    Attributes:
        http: address of HTTP.
        grpc: address of gRPC.
        streams: number of streams at a time.
        first: number of its first stream.
        pieces: text of each id of the script, for `Script`.
    """

    http: str
    grpc: str
    streams: int
    first: int
    pieces: list[bytes]


@dataclass
class Findings:
    """What a process found.

    Attributes:
        requests: number of requests that ended well.
        tokens: their tokens.
        refused: refusals that said when to come back.
        errors: number of anything else.
        texts: some of the errors.
    """

    requests: int = 0
    tokens: int = 0
    refused: int = 0
    errors: int = 0
    texts: list[str] = field(default_factory=list)

    def error(self, text: str) -> None:
        """Note an error."""
        self.errors += 1
        if len(self.texts) < _KEPT:
            self.texts.append(text[:300])


def read_http(pipe: Connection, part: Part) -> None:
    """Read streams of events until told to stop; send the Findings."""
    asyncio.run(_until_stopped(pipe, part, _http_streams))


def read_grpc(pipe: Connection, part: Part) -> None:
    """Read queues of one client until told to stop; send the Findings."""
    asyncio.run(_until_stopped(pipe, part, _grpc_streams))


async def _until_stopped(
    pipe: Connection, part: Part, read: Callable[[Part, Findings], Coroutine[Any, Any, None]]
) -> None:
    findings, stop = Findings(), asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), stop.set)
    reading = asyncio.create_task(read(part, findings))
    pipe.send("reading")
    await asyncio.wait([reading, stopped := asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    reading.cancel()
    outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
    if outcome is None or not isinstance(outcome, asyncio.CancelledError):
        findings.error(f"all reading ended: {outcome!r}")
    pipe.recv()
    pipe.send(findings)


async def _grpc_streams(part: Part, findings: Findings) -> None:
    async with AsyncClient(part.grpc, retry=RetryPolicy(retry_overload=True)) as client, asyncio.TaskGroup() as group:
        for number in range(part.first, part.first + part.streams):
            group.create_task(_grpc_stream(client, number, findings))


async def _grpc_stream(client: AsyncClient, number: int, findings: Findings) -> None:
    random = Random(number)
    while True:
        length = random.randint(SHORTEST, LONGEST)
        try:
            handle, queue = await client.start_request(
                MODEL, ids=_prompt(number), max_new_tokens=length, ignore_eos=True
            )
            try:
                found = [token async for elements in queue for token in elements.ids_from_generate]
            finally:
                await client.release_request(handle)  # When it is told to stop, too.
        except HeadraceError as error:
            findings.error(f"gRPC: {error!r}")
            await asyncio.sleep(1)  # It is to fail the run, not to flood it.
            continue
        if len(found) != length or any(after != _next(before) for before, after in pairwise(found)):
            findings.error(f"gRPC: {len(found)} ids of {length}, or not in order: {found[:50]}")
        findings.requests += 1
        findings.tokens += len(found)


async def _http_streams(part: Part, findings: Findings) -> None:
    script = Script(part.pieces)
    async with asyncio.TaskGroup() as group:
        for number in range(part.first, part.first + part.streams):
            group.create_task(_http_stream(part.http, number, script, findings))


async def _http_stream(address: str, number: int, script: Script, findings: Findings) -> None:
    random = Random(number)
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    while True:
        length = random.randint(SHORTEST, LONGEST)
        answer = await asked(reader, writer, address, {**_completion(number, length), "stream": True})
        if answer.status == 429 and answer.retry_after is not None:
            findings.refused += 1
            await asyncio.sleep(answer.retry_after)
            continue
        events = answer.body.decode().split("\n\n")
        if answer.status != 200 or events[-2:] != ["data: [DONE]", ""]:
            findings.error(f"HTTP: {answer.status} {answer.body[-200:]!r}")
            return
        text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2])
        if not script.has(text, length):
            findings.error(f"HTTP: not {length} tokens in order: {text[:100]!r}")
        findings.requests += 1
        findings.tokens += length


@dataclass
class Answer:
    """An answer of HTTP, filled by `httptools`."""

    status: int = 0
    retry_after: float | None = None
    body: bytes = b""
    complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if name.lower() == b"retry-after":
            self.retry_after = float(value)

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self.body += part

    def on_message_complete(self) -> None:
        """Note the end."""
        self.complete = True


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, body: Any) -> Answer:
    """Send a completion, and return its whole answer."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    answer = Answer()
    parser = httptools.HttpResponseParser(answer)
    while not answer.complete and (part := await reader.read(1 << 16)):
        parser.feed_data(part)
    answer.status = parser.get_status_code()
    return answer


def flood(pipe: Connection, part: Part) -> None:
    """Start many requests at once over both, without retries, again and again until told to stop."""
    asyncio.run(_until_stopped(pipe, part, _flood))


async def _flood(part: Part, findings: Findings) -> None:
    async with AsyncClient(part.grpc) as client:
        while True:
            numbers = range(part.first, part.first + part.streams)
            await asyncio.gather(
                *(_one_http(part.http, number, findings) for number in numbers),
                *(_one_grpc(client, number, findings) for number in numbers),
            )
            await asyncio.sleep(1)  # When they were told to come back.


async def _one_http(address: str, number: int, findings: Findings) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = await asked(reader, writer, address, _completion(number, 1))
    writer.close()
    if answer.status == 200:
        findings.requests += 1
    elif answer.status == 429 and answer.retry_after:
        findings.refused += 1
    else:
        findings.error(f"HTTP: {answer.status}, Retry-After {answer.retry_after}: {answer.body[-200:]!r}")


async def _one_grpc(client: AsyncClient, number: int, findings: Findings) -> None:
    try:
        handle, queue = await client.start_request(MODEL, ids=_prompt(number), max_new_tokens=1, ignore_eos=True)
        try:
            async for _ in queue:
                pass
        finally:
            await client.release_request(handle)
        findings.requests += 1
    except OverloadedError as error:
        if error.retry_after:
            findings.refused += 1
        else:
            findings.error(f"gRPC: {error!r} without a time")
    except HeadraceError as error:
        findings.error(f"gRPC: {error!r}")


def _prompt(number: int) -> list[int]:
    return [1 + number % 100, 1 + number // 100, 7]


def _completion(number: int, length: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": _prompt(number), "max_tokens": length, "ignore_eos": True}


def _next(token_id: int) -> int:
    return id_of(token_id - id_of(0) + 1)
