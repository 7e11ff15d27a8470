"""More requests than an engine lets wait: refused in each API's own form, with a time to come back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway
from support.servers.processes import Server

USER: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def narrow(shared_engine: Server, tiny: Path) -> Iterator[str]:
    """A model that runs one request, and lets one wait."""
    with Client(shared_engine.address) as client:
        client.install_model("narrow", path=str(tiny), max_batch=1, max_waiting=1, num_threads=1)
        client.start_model("narrow")
        yield "narrow"
        client.stop_model("narrow")
        client.release_model("narrow")


def test_overload_is_429_with_a_time(client: openai.OpenAI, gateway: HttpGateway, narrow: str, gate: Gate) -> None:
    gate.shut()
    chat = {"model": narrow, "messages": USER, "max_tokens": 40, "ignore_eos": True}
    with ThreadPoolExecutor(2) as threads, Client(gateway.address) as grpc:
        running = threads.submit(gateway.post, "/v1/chat/completions", chat)
        wait_until(lambda: len(grpc.list_requests()) == 1, "the first request does not arrive")
        gate.let(2)
        waiting = threads.submit(gateway.post, "/v1/chat/completions", chat)
        wait_until(lambda: len(grpc.list_requests()) == 2, "the second request does not arrive")
        with pytest.raises(openai.RateLimitError) as full:
            client.chat.completions.create(model=narrow, messages=USER, max_tokens=4)
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 1
        with anthropic.Anthropic(base_url=f"http://{gateway.http}", api_key="none", max_retries=0) as other:
            with pytest.raises(anthropic.RateLimitError):
                other.messages.create(model=narrow, messages=USER, max_tokens=4)
        gate.open()
        assert [running.result(LIMIT)[0], waiting.result(LIMIT)[0]] == [200, 200]
