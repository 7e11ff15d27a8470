"""The measured callers of HTTP: one process, with a connection and a stream of events for each request."""

from __future__ import annotations

import json
import selectors
import socket
import time
from multiprocessing.connection import Connection

from bench.service.readers import LENGTH, MODEL, Readings, Share

_EVENT = b"data: {"
_BUFFER = 1 << 16


def read_http(pipe: Connection, share: Share) -> None:
    """Start everything, report it, read until stopped, and send one Readings, with the events of each look."""
    streams = [_started(share.address, share.first + number) for number in range(share.requests)]
    for stream in streams:
        while _EVENT not in stream.recv(_BUFFER):
            pass
    readings = Readings()
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            stream.setblocking(False)
            selector.register(stream, selectors.EVENT_READ)
        pipe.send("reading")
        while not pipe.poll():
            for key, _ in selector.select(0.1):
                found: socket.socket = key.fileobj  # type: ignore[assignment]
                readings.tokens.append(found.recv(_BUFFER).count(_EVENT))
                readings.arrived.append(time.monotonic_ns())
    pipe.recv()
    pipe.send([readings])
    for stream in streams:
        stream.close()


def _started(address: str, number: int) -> socket.socket:
    """Send one request, as `readers.Session` does over gRPC."""
    host, _, port = address.rpartition(":")
    stream = socket.create_connection((host, int(port)))
    prompt = [1 + number % 100, 1 + number // 100, 7]
    body = json.dumps(
        {"model": MODEL, "prompt": prompt, "max_tokens": LENGTH, "ignore_eos": True, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
    stream.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return stream
