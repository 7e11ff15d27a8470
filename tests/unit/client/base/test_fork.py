"""BC-168: a client that was used before a fork. The scripts run in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from headrace_proto.v1 import engine_service_pb2
from support.clocks.waiting import LIMIT
from support.scripted.replies import Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, tokens

BEGIN = """
import multiprocessing, os, sys
from headrace import Client

address = sys.argv[1]

def call():
    try:
        with Client(address) as mine:
            return mine.server_info(timeout=60).name
    except RuntimeError as error:
        assert "spawn" in str(error), error
        return "refused"

def child(connection):
    connection.send(call())

def inherited(connection):
    try:
        client.server_info()
    except RuntimeError as error:
        connection.send(str(error))
    client.close()

def run(method, target):
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context(method).Process(target=target, args=(there,))
    process.start()
    assert here.poll(60), "the child hangs"
    answer = here.recv()
    process.join(60)
    assert process.exitcode == 0, process.exitcode
    return answer

if __name__ == "__main__":
"""


def run(server: ScriptedServer, body: str) -> str:
    """What a script prints, with the server's address as its argument."""
    script = BEGIN + textwrap.indent(textwrap.dedent(body), "    ")
    done = subprocess.run(
        [sys.executable, "-c", script, server.address], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def answering(server: ScriptedServer) -> ScriptedServer:
    """A server that answers as often as it is asked."""
    for _ in range(2):
        server.expect("GetServerInfo", engine_service_pb2.GetServerInfoResponse(name="e1"))
    return server


def test_bc168_use_in_a_fork_raises_and_the_parent_goes_on(answering: ScriptedServer) -> None:
    out = run(
        answering,
        """
        client = Client(address)
        print(client.server_info().name)
        print(run("fork", child))
        print("cannot be used in its fork" in run("fork", inherited))
        print(client.server_info().name)
        client.close()
        """,
    )
    assert out.split() == ["e1", "refused", "True", "e1"]


def test_bc168_a_fork_while_a_queue_reads(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([1]), Hang()])
    server.expect("GetServerInfo", engine_service_pb2.GetServerInfoResponse(name="e1"))
    out = run(
        server,
        """
        client = Client(address)
        handle, queue = client.start_request("smol", "Hello")
        assert queue.Get().ids_from_generate == [1]
        print(run("fork", child))
        pid = os.fork()
        if pid == 0:
            for use in (queue.Get, queue.GenerateStatus, queue.GeneratedLength):
                try:
                    use()
                    os._exit(1)
                except RuntimeError:
                    pass
            sys.exit(0)
        print(os.waitpid(pid, 0)[1])
        print(client.server_info().name)
        client.close()
        """,
    )
    assert out.split() == ["refused", "0", "e1"]


def test_bc168_spawns_and_early_forks_work(server: ScriptedServer) -> None:
    for _ in range(2):
        server.expect("GetServerInfo", engine_service_pb2.GetServerInfoResponse(name="e1"))
    script = BEGIN + textwrap.indent(
        'print(run("fork", child))\nwith Client(address) as client:\n    print(client.server_info().name)\n', "    "
    )
    done = subprocess.run(
        [sys.executable, "-c", script, server.address], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.split() == ["e1", "e1"], done.stderr


def test_bc168_a_spawned_child_makes_its_own_client(answering: ScriptedServer, tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "script.py"
    body = 'client = Client(address)\nprint(client.server_info().name)\nprint(run("spawn", child))\nclient.close()\n'
    file.write_text(BEGIN + textwrap.indent(body, "    "))
    done = subprocess.run(
        [sys.executable, str(file), answering.address], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.split() == ["e1", "e1"], done.stderr


def test_a_process_ends_with_open_queues(server: ScriptedServer) -> None:
    """Neither threads nor finalizers keep a process that is done, and none of them complains."""
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([1]), Hang()])
    code = f"""
    from headrace import Client
    client = Client("{server.address}")
    handle, queue = client.start_request("smol", "Hello")
    queue.Get()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    server.wait_for_streams(0)
