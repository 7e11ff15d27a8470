"""Event loops that end before their clients do. The scripts are processes of their own, where nothing may complain."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest
from support.clocks.waiting import LIMIT
from support.scripted.replies import Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, tokens

IDS = list(range(10))

LATE_EVENT = re.compile(
    r"^Exception in callback PollerCompletionQueue\._handle_events.*?^RuntimeError: Event loop is closed\n", re.M | re.S
)
"""gRPC has one queue of events for all loops: one for a call that ended with its loop may come to the next loop."""
BEGIN = """
import asyncio, sys
from headrace import AsyncClient, UnavailableError

address = sys.argv[1]
"""


def run(server: ScriptedServer, body: str) -> str:
    """What a script prints, with the server's address as its argument; warnings and asyncio's complaints fail it."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", BEGIN + textwrap.dedent(body), server.address],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    # gRPC itself tells of a server that goes; asyncio, in its development mode, of steps that took long. Why a server
    # without sessions refuses one may be lost on the way (see AsyncGrpcChannel): then the client asks again and tells.
    lines = LATE_EVENT.sub("", done.stderr).splitlines()
    message = [
        line for line in lines if not any(words in line for words in ("chttp2", "took", "the session was interrupted"))
    ]
    assert (done.returncode, message) == (0, []), done.stderr
    return done.stdout


@pytest.fixture
def reading(server: ScriptedServer) -> ScriptedServer:
    """A server whose requests do not end."""
    server.expect("StartRequest", accepted("e1/i1/1"), accepted("e1/i1/2"))
    server.expect("GeneratedElements", [tokens(IDS, 0, 5), Hang()], [tokens(IDS, 0, 5), Hang()])
    return server


def test_a_loop_that_closes_with_queues_open_does_not_complain(reading: ScriptedServer) -> None:
    out = run(
        reading,
        """
        async def main():
            client = AsyncClient(address)
            queues = [(await client.start_request("smol", "Hi"))[1] for _ in range(2)]
            for queue in queues:
                print(len((await queue.Get()).ids_from_generate))

        asyncio.run(main())
        """,
    )
    assert out.split() == ["5", "5"]


def test_a_queue_used_beyond_its_loop_raises(reading: ScriptedServer) -> None:
    """Tasks that still wait are cancelled with the loop; the queue knows no more than it did."""
    out = run(
        reading,
        """
        async def wait(queue):
            try:
                await queue.Get()
            except asyncio.CancelledError:
                print("cancelled")
                raise

        async def main():
            client = AsyncClient(address)
            queues = [(await client.start_request("smol", "Hi"))[1] for _ in range(2)]
            for queue in queues:
                await queue.Get()
            task = asyncio.create_task(wait(queues[0]))
            await asyncio.sleep(0)
            return queues, client, task

        queues, client, _ = asyncio.run(main())
        print(queues[0].GenerateStatus(), queues[0].GeneratedLength())

        async def again():
            try:
                await queues[0].Get()
            except RuntimeError as error:
                print(type(error).__name__)

        asyncio.run(again())
        """,
    )
    assert out.split() == ["cancelled", "Generating", "5", "RuntimeError"]


def test_text_dropped_as_the_loop_ends_is_left_to_the_lease(reading: ScriptedServer) -> None:
    out = run(
        reading,
        """
        async def main():
            client = AsyncClient(address)
            await (await client.start_request("smol", "Hi"))[1].Get()
            async for text in client.generate("smol", "Hi"):
                print(len(text) > 0)
                break

        asyncio.run(main())
        """,
    )
    assert out.split() == ["True"]


def test_a_client_that_never_called_anybody_needs_no_loop(server: ScriptedServer) -> None:
    assert run(server, "AsyncClient(address)\nprint('made')") == "made\n"


def test_several_loops_one_after_the_other_have_a_client_each(reading: ScriptedServer) -> None:
    from headrace_proto.v1 import request_service_pb2

    reading.expect("ReleaseRequest", *[request_service_pb2.ReleaseRequestResponse()] * 2)
    out = run(
        reading,
        """
        async def main():
            async with AsyncClient(address) as client:
                queue = (await client.start_request("smol", "Hi"))[1]
                print(len((await queue.Get()).ids_from_generate))

        for _ in range(2):
            asyncio.run(main())
        """,
    )
    assert out.split() == ["5", "5"]
