"""Processes that are killed while answers are on their way: what readers, and what engines are left with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from headrace import Client, EngineLostError, ResultQueue, RetryPolicy, UnavailableError
from headrace.types import FinishReason, GenerateStatus, RequestInfo
from support.clocks.waiting import LIMIT, wait_until
from support.servers.books import balanced
from support.servers.crowd import LENGTH, PATIENT, assert_whole, serve, start_all, undisturbed_answers
from support.servers.gate import Gate
from support.servers.ports import free_port
from support.servers.processes import Server, core_of, gated_engine_server, gateway_server
from support.servers.reading import Reading

CLIENT = """
import sys
from headrace import Client
client = Client(sys.argv[1])
config = {"ignore_eos": True, "lease": {"running": 3, "ended": 3600}, "max_new_tokens": 400}
queues = [client.start_request("tiny", ids=[1, 2, number], **config)[1] for number in range(4)]
read = [queue.Get().position for queue in queues[:2]]  # The others are never read.
print(*(queue.handle for queue in queues), flush=True)
for queue in queues:
    list(queue)
"""


def test_a_gateway_killed_three_times_costs_no_token(engine: Server, gate: Gate) -> None:
    """While it is away the engine goes on, and what readers missed is read again from where each of them was."""
    port = free_port()
    with Client(f"127.0.0.1:{port}", retry=PATIENT) as client, ExitStack() as running:
        restart(running, engine, port)
        expected = undisturbed_answers(client)
        gate.shut()
        readings = [Reading(queue) for queue in start_all(client)]
        for round_number in range(3):
            gate.let(40)
            heard = 60 * round_number + 30
            wait_until(lambda n=heard: min(r.length for r in readings) >= n, "some reader hears nothing")  # type: ignore[misc]
            running.close()
            gate.let(20)
            assert max(reading.length for reading in readings) < LENGTH
            restart(running, engine, port)
        gate.open()
        assert_whole(readings, expected, engine)


def restart(running: ExitStack, engine: Server, port: int) -> None:
    """A gateway on that port, which is killed when the stack is closed."""
    gateway = running.enter_context(gateway_server({"e1": engine.address}, "--listen", f"127.0.0.1:{port}"))
    running.callback(gateway.process.wait)
    running.callback(gateway.process.kill)


def test_bc175_core_and_gateway_killed_at_once_cost_no_token(engine: Server, gate: Gate) -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}", retry=PATIENT) as client, ExitStack() as running:
        restart(running, engine, port)
        expected = undisturbed_answers(client, 8)
        (before,) = client.engine_stats("tiny")
        gate.shut()
        readings = [Reading(queue) for queue in start_all(client, 8)]
        gate.let(60)
        wait_until(lambda: min(reading.length for reading in readings) >= 40, "some reader hears nothing")
        core_of(engine).kill()
        running.close()
        restart(running, engine, port)
        gate.open()
        assert_whole(readings, expected, engine)
        assert client.engine_stats("tiny")[0].core_epoch == before.core_epoch + 1


def test_a_killed_engine_leaves_what_came_and_then_an_error(tiny: Path, tmp_path: Path) -> None:
    """Without hand-over: nobody can tell while it is away; once its successor answers, the results are gone."""
    port = free_port()
    at_port = ("--listen", f"127.0.0.1:{port}")
    impatient = RetryPolicy(give_up_after=0.5)
    own_gate = Gate(tmp_path / "steps")
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_server({"e1": f"127.0.0.1:{port}"}))
        clients = [
            stack.enter_context(Client(address, retry=impatient, handover=False))
            for address in (f"127.0.0.1:{port}", gateway.address)
        ]
        with gated_engine_server("e1", own_gate, *at_port) as engine:
            serve(clients[0], tiny)
            wait_until(lambda: clients[1].server_info().engines[0].reachable, "the gateway does not find the engine")
            own_gate.shut()
            queues = [start_all(client, 2) for client in clients]
            own_gate.let(30)
            wait_until(lambda: min(q.GeneratedLength() for pair in queues for q in pair) >= 20, "nothing is generated")
            core = core_of(engine)
            for read, _ in queues:
                assert read.Get() is not None
            engine.process.kill()
            engine.process.wait()
        core.wait(LIMIT)
        for read, unread in queues:
            assert 0 < len(arrived(unread)) <= 30
            with pytest.raises(UnavailableError):
                while read.Get() is not None:
                    """What arrived before the loss."""
            assert read.GenerateStatus() is GenerateStatus.Generating
        with gated_engine_server("e1", own_gate, *at_port):
            for queue in (queue for pair in queues for queue in pair):
                assert_lost(queue)


def arrived(queue: ResultQueue) -> list[int]:
    elements = queue.GetNoWait()
    return [] if elements is None else elements.ids_from_generate


def assert_lost(queue: ResultQueue) -> None:
    """Reading ends with EngineLostError, again and again; status and reason say so too."""
    lost = Reading(queue)
    while isinstance(lost.error(), UnavailableError):
        lost = Reading(queue)
    assert isinstance(lost.error(), EngineLostError)
    for read in (queue.Get, queue.GetNoWait, lambda: queue.GetWithTimeout(10)):
        with pytest.raises(EngineLostError):
            read()
    assert queue.GenerateStatus() is GenerateStatus.InternalError
    assert queue.finish_reason is FinishReason.ENGINE_LOST


def test_requests_of_a_killed_client_are_stopped_by_their_lease(engine: Server, gate: Gate) -> None:
    """Two clients, one behind a gateway, with queues read and unread: every block is free, and the books balance."""
    gate.shut()
    with (
        gateway_server({"e1": engine.address}) as gateway,
        Client(engine.address) as watcher,
        started_client(engine.address) as first,
        started_client(gateway.address) as second,
    ):
        victims = [first, second]
        wait_until(lambda: len(watcher.list_requests()) == 8, "the clients start nothing")
        gate.let(20)
        handles = {handle for victim in victims for handle in said(victim).split()}
        assert len(handles) == 8
        wait_until(lambda: all(request.attached for request in watcher.list_requests()), "a request has no reader")
        for victim in victims:
            victim.kill()
            victim.wait()
        wait_until(lambda: not watcher.list_requests(running_only=True), "requests go on for nobody")
        left = watcher.list_requests()
        assert {request.handle.rpartition("/")[2] for request in left} == {h.rpartition("/")[2] for h in handles}
        assert {reason_of(request) for request in left} == {FinishReason.LEASE_EXPIRED}
        gate.open()
        wait_until(lambda: balanced(watcher), "blocks of requests that were stopped are not back")
        for request in left:
            assert watcher.open_queue(request.handle).Get() is not None, "tokens of a stopped request stay readable"


@contextmanager
def started_client(address: str) -> Iterator[subprocess.Popen[str]]:
    """A client in a process of its own, which ends with the test."""
    with subprocess.Popen([sys.executable, "-c", CLIENT, address], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Its first line."""
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.readline()


def reason_of(request: RequestInfo) -> FinishReason | None:
    return request.sequences[0].finish_reason
