"""Responses in the background survive their engine; a gateway bounds what it stores."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.servers.crowd import serve
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway, holder_of, http_gateway
from support.servers.processes import Server, gated_engine_server

MORE: Any = {"seed": 7, "ignore_eos": True}


@pytest.fixture
def pair(tiny: Path, tmp_path: Path) -> Iterator[tuple[dict[str, Server], HttpGateway, Gate]]:
    """Two engines whose steps one gate lets pass, and a gateway."""
    gate = Gate(tmp_path / "steps")
    with ExitStack() as stack:
        engines = {name: stack.enter_context(gated_engine_server(name, gate)) for name in ("e1", "e2")}
        for engine in engines.values():
            with Client(engine.address) as client:
                serve(client, tiny)
        gateway = stack.enter_context(http_gateway({name: engine.address for name, engine in engines.items()}))
        with Client(gateway.address) as client:
            wait_until(lambda: all(one.reachable for one in client.server_info().engines), "an engine is not reached")
        yield engines, gateway, gate


def test_a_response_in_the_background_survives_its_engine(pair: tuple[dict[str, Server], HttpGateway, Gate]) -> None:
    """Nobody reads it when its engine is killed; a reader that comes back has the whole text."""
    engines, gateway, gate = pair
    with openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=LIMIT) as client:

        def create(**more: Any) -> Any:
            return client.responses.create(model="tiny", input="Hello", max_output_tokens=100, extra_body=MORE, **more)

        undisturbed = create().output_text
        gate.shut()
        begun = create(background=True)
        gate.let(12)
        engines[holder_of(gateway)].process.send_signal(signal.SIGKILL)
        gate.open()
        wait_until(lambda: client.responses.retrieve(begun.id).status != "in_progress", "the response does not end")
        assert client.responses.retrieve(begun.id).output_text == undisturbed
        with client.responses.retrieve(begun.id, stream=True, starting_after=3) as stream:
            events = list(stream)
        assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == undisturbed
