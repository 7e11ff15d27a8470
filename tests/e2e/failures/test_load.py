"""Servers under load: asked to go, asked twice, and read by some that do not read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from headrace import Client, RetryPolicy, UnavailableError
from headrace.fields import Lease
from headrace.types import FinishReason, GenerateStatus, RequestInfo
from support.clocks.waiting import LIMIT, wait_until
from support.servers.crowd import (
    BATCH,
    GREEDY,
    LENGTH,
    PATIENT,
    assert_whole,
    serve,
    start_all,
    undisturbed_answers,
)
from support.servers.cut_proxy import cut_proxy
from support.servers.gate import Gate
from support.servers.idle_session import IdleSession
from support.servers.processes import Server, gated_engine_server, gateway_server
from support.servers.reading import Reading, joined
from support.servers.wire import Wire

HASTY = RetryPolicy(give_up_after=0.5)
MIB = 1 << 20
SHORT = 2
"""Seconds of both parts of a lease: more than a client takes to be there, also on a busy machine."""


def test_an_unread_queue_of_a_living_client_outlives_every_lease(engine: Server, gate: Gate) -> None:
    """Others with the same lease, whose client is gone, are stopped and released meanwhile."""
    with gateway_server({"e1": engine.address}) as gateway, Client(gateway.address) as client:
        gate.shut()
        lease: Lease = {"running": SHORT, "ended": SHORT}
        _, unread = client.start_request("tiny", ids=[1, 2], max_new_tokens=LENGTH, lease=lease, **GREEDY)
        see_lease_expire(gateway)
        gate.open()
        wait_until(lambda: not client.list_requests(running_only=True), "the request does not end")
        see_lease_expire(gateway)
        answer = joined([elements for elements in (unread.Get(), unread.Get()) if elements])
        assert len(answer.ids) == LENGTH
        assert unread.finish_reason is FinishReason.MAX_LENGTH


def see_lease_expire(gateway: Server) -> None:
    wire = Wire(gateway.address)
    short = {"seconds": SHORT}
    handle = wire.start("tiny", [3, 4], config=GREEDY | {"lease": {"running": short, "ended": short}}).handle
    wait_until(lambda: wire.state(handle) is None, "a request that nobody is there for stays")
    wire.close()


def test_bc172_a_stalled_reader_slows_nobody_and_loses_nothing(engine: Server) -> None:
    """It reads three logs on so many channels that servers without bounds would hold more than 70 MiB for it."""
    channels, length = 1000, 2000
    with gateway_server({"e1": engine.address}) as gateway, Client(gateway.address) as client:
        fields: dict[str, Any] = {"ids": [1, 2], "max_new_tokens": length, "logprobs": True, **GREEDY}
        started = [client.start_request("tiny", **fields) for _ in range(3)]
        handles = [handle for handle, _ in started]
        for handle in handles:
            client.sync_request(handle)
        answers = [list(Reading(queue).whole().ids) for _, queue in started]
        before = [peak_memory(server) for server in (gateway, engine)]
        idle = IdleSession(gateway.address)
        idle.attach([handle for handle in handles for _ in range(channels)])
        for handle in handles:
            wait_until(lambda h=handle: client.get_request(h).attached == channels, "not all are attached")  # type: ignore[misc]
        undisturbed_answers(client)  # Others come to their ends while it does not read.
        idle.read_on()
        assert idle.held_back > 0, "the gateway's bound was never reached"
        assert idle.read == [ids for ids in answers for _ in range(channels)]
        after = [peak_memory(server) for server in (gateway, engine)]
        assert max(end - begin for begin, end in zip(before, after, strict=True)) < 60 * MIB
        idle.close()


def peak_memory(server: Server) -> int:
    """Bytes that a server's process had in memory at most."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def test_a_stopped_client_holds_up_nobody_and_resumes(engine: Server, gate: Gate) -> None:
    """SIGSTOP: its connection stands, and nobody reads from it."""
    with gateway_server({"e1": engine.address}) as gateway, Client(gateway.address, retry=PATIENT) as client:
        expected = undisturbed_answers(client, 8)
        gate.shut()
        with stopped_client(gateway.address, client, gate) as victim:
            readings = [Reading(queue) for queue in start_all(client, 8)]
            gate.open()
            assert_whole(readings, expected)
            victim.send_signal(signal.SIGCONT)
            reported, _ = victim.communicate(timeout=LIMIT)
        assert reported.split() == [str(answer.checksum) for answer in expected]


@contextmanager
def stopped_client(address: str, watcher: Client, gate: Gate) -> Iterator[subprocess.Popen[str]]:
    """A client that was stopped in the middle of its answers, and prints their checksums once it has them all."""
    script = (
        "import sys\n"
        "from headrace import Client\n"
        "from support.servers.crowd import start_all\n"
        "from support.servers.reading import joined\n"
        "queues = start_all(Client(sys.argv[1]), 8)\n"
        "answers = [joined(queue) for queue in queues]\n"
        "print(*(answer.checksum for answer in answers))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, address]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        wait_until(lambda: len(watcher.list_requests(running_only=True)) == 8, "the client starts nothing")
        gate.let(60)
        victim.send_signal(signal.SIGSTOP)
        yield victim
    finally:
        victim.kill()
        victim.communicate()


def test_a_start_with_a_lost_answer_is_found_by_another_gateway(tiny: Path, tmp_path: Path) -> None:
    """Two engines, of which the idle one would be chosen for a request that nobody asks after."""
    gates = {name: Gate(tmp_path / name) for name in ("e1", "e2")}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(gated_engine_server(name, gate)) for name, gate in gates.items()}
        engines = [stack.enter_context(Client(server.address)) for server in servers.values()]
        for engine in engines:
            serve(engine, tiny)
        for gate in gates.values():
            gate.shut()
        addresses = {name: server.address for name, server in servers.items()}
        first, second = (stack.enter_context(gateway_server(addresses)) for _ in range(2))
        proxy = stack.enter_context(cut_proxy(first.address))
        client = stack.enter_context(Client(f"{proxy.address},{second.address}", retry=PATIENT))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        assert client.server_info().name == "gateway"  # A connection stands.
        proxy.swallow()
        start = thread.submit(client.start_request, "tiny", ids=[1, 2, 3], max_new_tokens=LENGTH, **GREEDY)
        wait_until(lambda: len(all_requests(engines)) == 1, "no request arrives")
        assert not start.done()
        proxy.cut()
        handle, queue = start.result(LIMIT)
        assert [request.request.request_id for request in all_requests(engines)] == [queue.request_id]
        for gate in gates.values():
            gate.open()
        assert len(Reading(queue).whole().ids) == LENGTH
        assert len(all_requests(engines)) == 1
        client.release_request(handle)
        assert all_requests(engines) == []


def all_requests(engines: list[Client]) -> list[RequestInfo]:
    return [request for engine in engines for request in engine.list_requests()]


def test_bc173_sigterm_drains_an_engine_under_load(tiny: Path, tmp_path: Path) -> None:
    """What runs and what waits comes to its end; what is new is refused, and by the engine's gateway too."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate, "--drain-limit", "300") as engine, ExitStack() as stack:
        gateway = stack.enter_context(gateway_server({"e1": engine.address}))
        client = stack.enter_context(Client(gateway.address, retry=PATIENT))
        serve(client, tiny)
        expected = undisturbed_answers(client, BATCH + 8)
        gate.shut()
        readings = [Reading(queue) for queue in start_all(client, BATCH + 8)]
        gate.let(20)
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_event("draining")
        assert refusal(engine.address) == "DRAINING"
        wait_until(lambda: refusal(gateway.address) == "DRAINING", "the gateway does not hear of the drain")
        gate.open()
        assert_whole(readings, expected)
        assert engine.process.wait(LIMIT) == 0


def refusal(address: str) -> str:
    """Why a start is refused, without another attempt."""
    wire = Wire(address)
    with pytest.raises(UnavailableError) as caught:
        wire.start("tiny", [1, 2])
    wire.close()
    return caught.value.reason


def test_an_engine_ends_what_outlasts_its_drain_limit(tiny: Path, tmp_path: Path) -> None:
    """With DRAINED; the tokens so far are read, also by those who read late, once no other engine has taken over."""
    gate = Gate(tmp_path / "steps")
    with (
        gated_engine_server("e1", gate, "--drain-limit", "0.2") as engine,
        Client(engine.address, retry=HASTY) as client,
    ):
        serve(client, tiny)
        gate.shut()
        readings = [Reading(queue) for queue in start_all(client)]
        gate.let(20)
        wait_until(lambda: min(reading.length for reading in readings) > 10, "some reader hears nothing")
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_event("draining")
        for reading in readings:
            assert 10 < len(reading.whole().ids) < LENGTH
            assert reading.queue.GenerateStatus() is GenerateStatus.GenerateInterrupted
            assert reading.queue.finish_reason is FinishReason.DRAINED
        gate.open()
        assert engine.process.wait(LIMIT) == 0


@pytest.mark.parametrize("limit", ["300", "0.2"])
def test_bc173_sigterm_drains_a_gateway_under_load(engine: Server, gate: Gate, limit: str) -> None:
    """Streams end there, or at the drain limit go on at the other gateway; no token is lost either way."""
    with ExitStack() as stack:
        arguments = ("--drain-limit", limit)
        leaving = stack.enter_context(gateway_server({"e1": engine.address}, *arguments))
        staying = stack.enter_context(gateway_server({"e1": engine.address}))
        client = stack.enter_context(Client(f"{leaving.address},{staying.address}", retry=PATIENT))
        expected = undisturbed_answers(client)
        gate.shut()
        readings = [Reading(queue) for queue in start_all(client)]
        gate.let(40)
        wait_until(lambda: min(reading.length for reading in readings) > 10, "some reader hears nothing")
        leaving.process.send_signal(signal.SIGTERM)
        leaving.wait_event("draining")
        if limit == "300":
            assert refusal(leaving.address) == "DRAINING"
        else:
            assert leaving.process.wait(LIMIT) == 0
        late = Reading(client.start_request("tiny", ids=[1, 2, 0], max_new_tokens=LENGTH, **GREEDY)[1])
        assert max(reading.length for reading in readings) < LENGTH
        gate.open()
        assert_whole([*readings, late], [*expected, expected[0]], engine)
        assert leaving.process.wait(LIMIT) == 0
