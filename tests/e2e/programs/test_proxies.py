"""The configurations of proxies that docs/proxies.md gives, in front of a gateway; run where the proxy is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace import Client, NotFoundError
from headrace_proto.v1 import model_service_pb2, model_service_pb2_grpc, request_service_pb2, request_service_pb2_grpc
from support.clocks.waiting import wait_until
from support.models.tiny_models import make_tiny_llama
from support.servers.certificates import Authority
from support.servers.processes import Server, engine_server, gateway_server

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "deploy" / "proxies"
GATEWAY = "127.0.0.1:7070"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin")


def _marked(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.skipif(_found(name) is None, reason=f"{name} is not installed"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = make_tiny_llama(tmp_path_factory.mktemp("proxies") / "tiny", max_position_embeddings=2048)
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            client.install_model("smol", path=str(folder), max_batch=4, num_threads=1)
            client.start_model("smol")
        yield gateway


@pytest.fixture(params=[_marked("nginx"), _marked("haproxy")])
def proxy(request: pytest.FixtureRequest, gateway: Server, tmp_path: Path) -> Iterator[tuple[str, bytes]]:
    """A proxy as its file configures it, but for addresses and paths; where it listens, and whom to trust."""
    authority = Authority(tmp_path)
    key, certificate = authority.pair("DNS:localhost,IP:127.0.0.1")
    (tmp_path / "llm.key").write_bytes(key)
    (tmp_path / "llm.pem").write_bytes(certificate if request.param == "nginx" else certificate + key)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if request.param == "nginx":
        file, changes = "nginx.conf", {"listen 443": f"listen 127.0.0.1:{port}", "/etc/ssl/": f"{tmp_path}/"}
        options = ["-e", "stderr", "-g", f"daemon off; pid {tmp_path}/pid;", "-c"]
    else:
        file, changes = "haproxy.cfg", {"bind :443": f"bind 127.0.0.1:{port}", "/etc/haproxy/": f"{tmp_path}/"}
        options = ["-db", "-f"]
    text = (CONFIGS / file).read_text()
    for before, after in {**changes, GATEWAY: gateway.address}.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / file).write_text(text)
    with subprocess.Popen([str(_found(request.param)), *options, str(tmp_path / file)]) as process:
        yield f"localhost:{port}", authority.root
        process.terminate()


def test_a_proxy_passes_on_what_clients_need(proxy: tuple[str, bytes], gateway: Server) -> None:
    """Sessions, statuses with their details, large messages, streams, health, watches, and cancelling."""
    address, root = proxy
    credentials = grpc.ssl_channel_credentials(root)
    with (
        Client(address, credentials=credentials) as client,
        Client(gateway.address) as direct,
        grpc.secure_channel(address, credentials) as channel,
    ):
        handle, queue = client.start_request("smol", ids=[1, 2, 3], max_new_tokens=50, ignore_eos=True)
        assert sum(len(elements.ids_from_generate) for elements in queue) == 50
        client.release_request(handle)
        with pytest.raises(NotFoundError, match='no model "nope"'):
            client.start_request("nope", ids=[1])
        with pytest.raises(Exception, match="prompt has 10485760 characters"):
            client.tokenize("smol", text="a" * (10 << 20))
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        watch = model_service_pb2_grpc.ModelServiceStub(channel).WatchModel(
            model_service_pb2.WatchModelRequest(model_name="smol")
        )
        assert next(health).status == SERVING
        next(watch)
        question = request_service_pb2.GenerateRequest(
            model_name="smol", token_ids={"ids": [1, 2, 3]}, config={"max_new_tokens": 2000, "ignore_eos": True}
        )
        answers = request_service_pb2_grpc.RequestServiceStub(channel).Generate(question)
        next(answers)
        answers.cancel()
        wait_until(lambda: not list(direct.list_requests()), "a stream that is cancelled ends its request")
        direct.stop_model("smol")
        next(watch)
        assert next(health).status == NOT_SERVING
        direct.start_model("smol")
        health.cancel()
        watch.cancel()


def test_the_page_names_every_configuration() -> None:
    page = (ROOT / "docs" / "proxies.md").read_text()
    files = [file.name for file in CONFIGS.iterdir()]
    assert files
    assert [file for file in files if f"](../deploy/proxies/{file})" not in page] == []
