"""256 queues at once."""

from __future__ import annotations

import threading

from headrace import Client
from scripted_server import ScriptedServer
from wire_samples import accepted, ended, tokens

COUNT = 256
IDS = list(range(64))


def test_256_queues_read_at_once_and_leave_nothing_behind() -> None:
    server = ScriptedServer(workers=COUNT + 8).start()
    go = threading.Event()
    server.expect("StartRequest", *[accepted(f"e1/i1/{number}") for number in range(COUNT)])
    server.expect("GeneratedElements", *[[tokens(IDS, 0, 1), go, tokens(IDS, 1), ended(IDS)] for _ in range(COUNT)])
    before = threading.active_count()
    client = Client(server.address)
    queues = [client.start_request("smol", "Hello")[1] for _ in range(COUNT)]
    server.wait_for_streams(COUNT)
    assert [queue.Get().ids_from_generate for queue in queues] == [[0]] * COUNT
    go.set()
    assert [[token for one in queue for token in one.ids_from_generate] for queue in queues] == [IDS[1:]] * COUNT
    server.wait_for_streams(0)
    client.close()
    server.stop()
    server.check()
    for thread in threading.enumerate():
        if thread.name == "headrace-reader":
            thread.join(20)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-reader")]
    assert before > 0
