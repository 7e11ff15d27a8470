"""Real processes: what happens when they are asked to end, are killed, or cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest
from headrace import Client, HeadraceError, RetryPolicy, UnavailableError
from headrace.types import FinishReason, ModelState
from support.clocks.waiting import LIMIT, wait_until
from support.servers.gate import Gate
from support.servers.ports import free_port
from support.servers.processes import (
    Server,
    core_of,
    engine_server,
    gated_engine_server,
    gateway_server,
    health_of,
    running,
)

CANARY = "xylophonecanary"
LONG = {"ignore_eos": True, "do_sample": False}
PATIENT = ("--drain-limit", "300")


def _serve(client: Client, tiny: Path, **fields: object) -> None:
    client.install_model("tiny", path=str(tiny), max_batch=4, max_length=1024, num_threads=1, **fields)  # type: ignore[arg-type]
    client.start_model("tiny")


def test_bc177_health_follows_the_model(tiny: Path) -> None:
    with engine_server("e1") as engine, Client(engine.address) as client:
        for service, expected in (("", "NOT_SERVING"), ("headrace.v1.ModelService", "SERVING")):
            assert health_of(engine.address, service) == expected
        _serve(client, tiny)
        for service in ("", "headrace.v1.RequestService"):
            wait_until(lambda s=service: health_of(engine.address, s) == "SERVING", "health does not follow")
        client.stop_model("tiny")
        wait_until(lambda: health_of(engine.address, "") == "NOT_SERVING", "health does not follow")
        with pytest.raises(grpc.RpcError) as refusal:
            health_of(engine.address, "nobody")
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("through_gateway", [False, True])
def test_bc173_t2_sigterm_drains(tiny: Path, tmp_path: Path, through_gateway: bool) -> None:
    """New requests are refused, running ones end fully, and the server ends with 0."""
    gate = Gate(tmp_path / "steps")
    with (
        gated_engine_server("e1", gate, *PATIENT) as engine,
        gateway_server({"e1": engine.address}, *PATIENT) as gateway,
    ):
        server = gateway if through_gateway else engine
        with Client(server.address) as client:
            _serve(client, tiny)
            gate.shut()
            queues = [client.start_request("tiny", ids=[1, 2], max_new_tokens=600, **LONG)[1] for _ in range(3)]
            gate.let(5)
            counts = [len(_first(queue)) for queue in queues]
            server.process.send_signal(signal.SIGTERM)
            server.wait_event("draining")  # All are in the middle of their answers, however slow this process is.
            gate.open()
            counts = [n + sum(len(e.ids_from_generate) for e in q) for n, q in zip(counts, queues, strict=True)]
            assert counts == [600] * 3
            assert all(queue.finish_reason is FinishReason.MAX_LENGTH for queue in queues)
            client.close()
        assert server.process.wait(LIMIT) == 0


def _first(queue: object) -> list[int]:
    return queue.Get().ids_from_generate  # type: ignore[attr-defined,no-any-return]


def test_a_draining_engine_takes_no_requests(tiny: Path) -> None:
    with engine_server("e1") as engine, Client(engine.address) as client, impatient(engine) as other:
        _serve(client, tiny)
        client.start_request("tiny", ids=[1, 2], **LONG)
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_event("draining")
        with pytest.raises(UnavailableError):
            other.start_request("tiny", ids=[1, 2], **LONG)


def impatient(server: Server) -> Client:
    """A client that soon tells what it is refused with."""
    return Client(server.address, timeout=None, retry=RetryPolicy(give_up_after=0.5))


def test_a_killed_service_takes_its_core_along(tiny: Path) -> None:
    with engine_server("e1") as engine, Client(engine.address) as client:
        _serve(client, tiny)
        core = core_of(engine)
        engine.process.kill()
        engine.process.wait()
        core.wait(LIMIT)


def test_a_killed_engine_is_unreachable_and_then_lost(tiny: Path) -> None:
    port = free_port()
    with gateway_server({"e1": f"127.0.0.1:{port}"}) as gateway, Client(gateway.address) as client:
        with engine_server("e1", "--listen", f"127.0.0.1:{port}"):
            wait_until(lambda: client.server_info().engines[0].reachable, "the gateway does not find the engine")
            _serve(client, tiny)
            handle, _ = client.start_request("tiny", ids=[1, 2], **LONG)
        with impatient(gateway) as other, pytest.raises(UnavailableError) as refusal:
            other.get_request(handle)
        assert refusal.value.reason == "ENGINE_UNREACHABLE"
        with engine_server("e1", "--listen", f"127.0.0.1:{port}"):
            wait_until(lambda: client.server_info().engines[0].reachable, "the gateway does not find the engine")
            with pytest.raises(HeadraceError) as lost:
                client.get_request(handle)
            assert lost.value.reason == "ENGINE_LOST"
            client.release_request(handle)


def test_an_engine_returns_to_its_models_after_a_restart(tiny: Path, tmp_path: Path) -> None:
    keep = ("--state-dir", str(tmp_path))
    with engine_server("e1", *keep) as engine, Client(engine.address) as client:
        _serve(client, tiny)
        client.install_model("idle", path=str(tiny))
        engine.process.kill()
        engine.process.wait()
    with engine_server("e1", *keep) as engine, Client(engine.address) as client:
        wait_until(lambda: client.get_model("tiny")[0].state is ModelState.RUNNING, "tiny does not return")
        wait_until(lambda: client.get_model("idle")[0].state is ModelState.INITIAL, "idle does not return")
        assert client.get_model("tiny")[0].effective.config["max_length"] == 1024  # type: ignore[union-attr]


def test_models_of_the_command_line_are_installed_and_started(tiny: Path) -> None:
    with engine_server("e1", "--model", f"mine={tiny}") as engine, Client(engine.address) as client:
        wait_until(lambda: client.get_model("mine")[0].state is ModelState.RUNNING, "the model does not start")


def test_model_roots_bound_what_can_be_installed(tiny: Path, tmp_path: Path) -> None:
    with engine_server("e1", "--model-root", str(tmp_path)) as engine, Client(engine.address) as client:
        with pytest.raises(HeadraceError, match="root"):
            client.install_model("tiny", path=str(tiny), num_threads=1)
        with pytest.raises(HeadraceError, match="root"):
            client.inspect_model(f"{tmp_path}/../{tiny.name}/../..")


def test_f9_callers_learn_nothing_of_the_host_outside_the_roots(tiny: Path) -> None:
    """Behind the gateway: what is there, what is not, and what may not be read are refused by one text."""
    root = ("--model-root", str(tiny.parent), "--model", f"mine={tiny}", "--num-threads", "1")
    with engine_server("e1", *root) as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            reported = set()
            for path in ("/root", "/etc", "/etc/shadow", "/absent", "~/x", "../..", "/proc/self/mem"):
                with pytest.raises(HeadraceError) as caught:
                    client.inspect_model(path)
                if path != "~/x":
                    reported.add(str(caught.value).replace(path, "PATH"))
                with pytest.raises(HeadraceError):
                    client.install_model("other", path=path)
            assert len(reported) == 1
            assert client.inspect_model(tiny.name).vocab_size == 384
            client.install_model("other", path=tiny.name, num_threads=1)
            [other] = client.get_model("other")
            assert other.effective is not None
            assert other.effective.config["model_path"] == tiny.name


def test_f9_without_a_root_callers_install_by_no_path(tiny: Path) -> None:
    line = ("-m", "headrace_engine", "--name", "e1", "--listen", "127.0.0.1:0", "--model", f"mine={tiny}")
    with running(*line) as engine, Client(engine.address) as client:
        wait_until(lambda: client.get_model("mine")[0].state is ModelState.RUNNING, "the model does not start")
        with pytest.raises(HeadraceError, match="--model-root DIR"):
            client.install_model("other", path=str(tiny))
        client.install_model("mine", path=str(tiny))


@pytest.mark.parametrize("module", ["headrace_engine", "headrace_gateway"])
@pytest.mark.parametrize("reuse", [False, True])
def test_bc194_a_port_in_use_is_one_clear_line(module: str, reuse: bool) -> None:
    extra = ("--engine", "e1=127.0.0.1:1") if module == "headrace_gateway" else ()
    with socket.socket() as taken:
        if reuse:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", module, "--listen", f"127.0.0.1:{port}", *extra]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_bc197_prompts_and_answers_reach_no_log(tiny: Path) -> None:
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            _serve(client, tiny)
            list(client.generate("tiny", CANARY, max_new_tokens=4))
            for call in (
                lambda: client.start_request("tiny", CANARY * 2000),
                lambda: client.start_request("tiny", "a", response_format={"type": "grammar", "text": CANARY}),
                lambda: client.start_request("tiny", messages=[{"role": "", "content": CANARY}]),
                lambda: client.start_request(CANARY[:3], CANARY),
            ):
                _refused(call)
            core_of(engine).kill()
            engine.wait_event("core_restarted")
        gateway.stop()
        engine.stop()
        assert CANARY not in engine.text + gateway.text
        assert "Traceback" not in engine.text + gateway.text


def _refused(call: Callable[[], object]) -> None:
    with pytest.raises(HeadraceError):
        call()


def test_bc085_a_client_killed_in_mid_stream_holds_up_nobody(tiny: Path) -> None:
    """The next one asks the same and has its whole answer; what the dead one held is free when its lease is over."""
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            _serve(client, tiny)
            script = (
                "from headrace import Client\n"
                f"client = Client('{gateway.address}')\n"
                "lease = {'running': 0.5, 'ended': 0.5}\n"
                "_, queue = client.start_request('tiny', ids=[5, 6, 7], top_k=1, ignore_eos=True, lease=lease)\n"
                "for _ in queue:\n"
                "    print(queue.GeneratedLength(), flush=True)\n"
            )
            reader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
            assert reader.stdout is not None
            while int(reader.stdout.readline()) < 5:
                pass
            os.kill(reader.pid, signal.SIGKILL)
            reader.wait()
            reader.stdout.close()
            handle, queue = client.start_request("tiny", ids=[5, 6, 7], max_new_tokens=200, **LONG)
            assert len([token for elements in queue for token in elements.ids_from_generate]) == 200
            client.release_request(handle)
            wait_until(lambda: client.list_requests() == [], "what the dead client began is kept for ever")
            wait_until(lambda: client.engine_stats("tiny")[0].blocks_used == 0, "its blocks are kept for ever")


def test_bc086_a_dropped_generate_stops_the_request(tiny: Path) -> None:
    """The client process is killed while it streams: the engine is idle soon after."""
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            _serve(client, tiny)
            script = (
                "import grpc, sys\n"
                "from headrace.v1 import request_service_pb2 as w, request_service_pb2_grpc as g\n"
                f"stub = g.RequestServiceStub(grpc.insecure_channel('{gateway.address}'))\n"
                "request = w.GenerateRequest(model_name='tiny', text='Hello')\n"
                "request.config.ignore_eos = True\n"
                "for n, _ in enumerate(stub.Generate(request)):\n"
                "    print(n, flush=True)\n"
            )
            reader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
            assert reader.stdout is not None
            for _ in range(3):
                reader.stdout.readline()
            os.kill(reader.pid, signal.SIGKILL)
            reader.wait()
            reader.stdout.close()
            wait_until(lambda: client.list_requests() == [], "the request goes on for nobody")
            stat = client.engine_stats("tiny")[0]
            assert stat.running == stat.waiting == 0


def test_servers_of_tests_that_are_killed_end_too() -> None:
    """Time limits kill tests without letting them clean up."""
    script = (
        "import sys\n"
        "from support.servers.processes import gateway_server\n"
        "with gateway_server({'e1': '127.0.0.1:1'}) as gateway:\n"
        "    print(gateway.process.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    paths = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
    ) as tests:
        assert tests.stdout is not None
        gateway = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    gateway.wait(LIMIT)
    assert not gateway.is_running()
