"""What a network does to the connection of a gateway and one of its engines, with hand-over on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from headrace import Client, ResultQueue
from support.clocks.waiting import wait_until
from support.servers.crowd import GREEDY, PATIENT, SAMPLED, serve
from support.servers.cut_proxy import CutProxy, cut_proxy
from support.servers.gate import Gate
from support.servers.processes import Server, gated_engine_server, gateway_server
from support.servers.reading import Reading, step_until

LENGTH = 100
FAULTS: dict[str, tuple[Callable[[CutProxy], None], bool | None]] = {
    "cut": (CutProxy.cut, True),
    "half-open": (CutProxy.vanish, True),
    "stale": (CutProxy.strand, None),
    "one-way": (CutProxy.swallow, True),
    "delayed": (lambda proxy: proxy.delay(0.2), False),
    "throttled": (lambda proxy: proxy.throttle(20_000), False),
}
"""What happens, and whether the engine is then lost; one that is only slow is waited for.

None: it depends. Of stale connections gRPC finds after 10 s that a ping was not answered, which is about when the
engine counts as lost; a new connection is served.
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "steps")


@pytest.fixture(scope="module")
def engines(tiny: Path, gate: Gate) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        engines = {name: stack.enter_context(gated_engine_server(name, gate)) for name in ("e1", "e2")}
        for engine in engines.values():
            with Client(engine.address) as client:
                serve(client, tiny)
        yield engines


def start_all(client: Client) -> list[ResultQueue]:
    configs = [SAMPLED | {"seed": number} if number % 2 else GREEDY for number in range(6)]
    return [
        client.start_request("tiny", ids=[1, 2, number], max_new_tokens=LENGTH, **config)[1]
        for number, config in enumerate(configs)
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_stream_is_whole(engines: dict[str, Server], gate: Gate, fault: str) -> None:
    strike, loses = FAULTS[fault]
    with ExitStack() as stack:
        proxy = stack.enter_context(cut_proxy(engines["e1"].address))
        gateway = stack.enter_context(gateway_server({"e1": proxy.address, "e2": engines["e2"].address}))
        client = stack.enter_context(Client(gateway.address, retry=PATIENT))
        wait_until(lambda: all(e.reachable for e in client.server_info().engines), "an engine is not reached")
        expected = [Reading(queue).whole() for queue in start_all(client)]
        gate.shut()
        queues = start_all(client)
        readings = [Reading(queue) for queue in queues]
        step_until(gate, readings, 10)
        there = [queue for queue in queues if queue.handle.startswith("e1/")]
        assert 0 < len(there) < len(queues)
        strike(proxy)
        gate.open()
        assert [reading.whole() for reading in readings] == expected
        moved = [queue for queue in queues if queue.RequestStatInfo()["handovers"]]
        if loses is None:
            assert all(queue in there for queue in moved)
        else:
            assert moved == (there if loses else [])
