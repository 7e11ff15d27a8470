"""Responses in the background survive their engine; a gateway bounds what it stores."""

from __future__ import annotations

import signal
from typing import Any

import openai
from support.clocks.waiting import LIMIT, wait_until
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway, holder_of
from support.servers.processes import Server

MORE: Any = {"seed": 7, "ignore_eos": True}


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
