"""256 queues at once."""

from __future__ import annotations

import threading

import pytest
from headrace import Client
from support.clocks.waiting import LIMIT
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended, tokens

COUNT = 256
IDS = list(range(64))


def client_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Those that bring results, but for those that were there before."""
    names = ("headrace-reader", "headrace-writer", "headrace-stream")
    return [thread for thread in threading.enumerate() if thread.name in names and thread not in before]


@pytest.mark.parametrize(("sessions", "count"), [(True, 2), (False, COUNT)])
def test_256_queues_read_at_once_and_leave_nothing_behind(sessions: bool, count: int) -> None:
    """Two threads carry them all; without sessions it is one each."""
    before = set(threading.enumerate())
    server = ScriptedServer(workers=COUNT + 8, sessions=sessions).start()
    go = threading.Event()
    server.expect("StartRequest", *[accepted(f"e1/i1/{number}") for number in range(COUNT)])
    server.expect("GeneratedElements", *[[tokens(IDS, 0, 1), go, tokens(IDS, 1), ended(IDS)] for _ in range(COUNT)])
    client = Client(server.address)
    queues = [client.start_request("smol", "Hello")[1] for _ in range(COUNT)]
    server.wait_for_streams(COUNT)
    assert [queue.Get().ids_from_generate for queue in queues] == [[0]] * COUNT
    assert len(client_threads(before)) == count
    go.set()
    assert [[token for one in queue for token in one.ids_from_generate] for queue in queues] == [IDS[1:]] * COUNT
    server.wait_for_streams(0)
    client.close()
    server.stop()
    server.check()
    for thread in client_threads(before):
        thread.join(LIMIT)
    assert client_threads(before) == []
