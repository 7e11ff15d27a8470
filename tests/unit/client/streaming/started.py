"""A request that was started on a scripted server."""

from __future__ import annotations

from headrace import (
    Client,
    ResultQueue,
)
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import (
    accepted,
)


def start(client: Client, server: ScriptedServer, *streams: list[object]) -> ResultQueue:
    """A queue whose streams, one after the other, play these steps."""
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", *streams)
    queue = client.start_request("smol", "Hello")[1]
    server.wait_for("GeneratedElements")
    return queue
