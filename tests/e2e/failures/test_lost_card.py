"""A card is lost for good while streams run: they go on at an engine on CPUs, where the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headrace import Client, InternalServerError, ResultQueue
from headrace.types import FinishReason
from headrace_engine.environment import NATIVE_VARIABLE
from native.build import BUILD_LIMIT, HAS_NVCC, native_libraries
from support.models.tiny_models import make_tiny_llama
from support.servers.crowd import PATIENT
from support.servers.gate import Gate
from support.servers.processes import Server, core_of, engine_on_a_card, engine_server, gateway_server
from support.servers.reading import Reading, step_until
from support.servers.wire import Wire

pytestmark = pytest.mark.timeout(BUILD_LIMIT)  # The first one may build the simulator.

LENGTH = 24
BEFORE = 6
"""Tokens that each stream has at least when the card is lost."""
SETTINGS: dict[str, Any] = {"max_length": 128, "max_batch": 4, "max_prefill_tokens": 48, "num_threads": 1}
KINDS: list[dict[str, Any]] = [
    {"ignore_eos": True, "do_sample": False},
    {"ignore_eos": True, "do_sample": True, "seed": 7, "temperature": 1.3, "top_k": 40},
    {"ignore_eos": True, "do_sample": False, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
]


@dataclass
class Fleet:
    """An engine on a card, a spare one on CPUs, and a gateway before them."""

    card: Server
    cpus: Server
    gateway: Server
    gate: Gate
    there: Path

    def lose(self) -> None:
        """The card is gone, and its core with it."""
        self.there.unlink()
        core_of(self.card).kill()
        self.gate.open()


@pytest.fixture(params=[True, False], ids=["handed over", "not handed over"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    if not HAS_NVCC:
        pytest.skip("the simulator needs CUDA's headers, and there is no nvcc")
    gate, there = Gate(tmp_path / "steps"), tmp_path / "card"
    there.touch()
    shape = {"hidden_size": 128, "head_dim": 64, "num_hidden_layers": 1}
    model = make_tiny_llama(tmp_path / "tiny", max_position_embeddings=128, **shape)
    arguments = ("--hand-over-failed",) if request.param else ()
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(NATIVE_VARIABLE, str(native_libraries()))
            card = stack.enter_context(engine_on_a_card("card", gate, there, *arguments))
            cpus = stack.enter_context(engine_server("cpus", "--backend", "cpu"))
        stack.callback(gate.open)
        gateway = stack.enter_context(gateway_server({"cpus": cpus.address, "card": card.address}, "--spare", "cpus"))
        with Client(gateway.address) as client:
            client.install_model("tiny", path=str(model), **SETTINGS)
            client.start_model("tiny")
        yield Fleet(card, cpus, gateway, gate, there)


def started(client: Client, fleet: Fleet) -> list[ResultQueue]:
    """Queues of requests that all run on the card, and have come some way."""
    fleet.gate.shut()
    queues = [
        client.start_request("tiny", ids=[1, 2, number], max_new_tokens=LENGTH, request_id=f"r{number}", **config)[1]
        for number, config in enumerate(KINDS)
    ]
    assert {queue.handle.partition("/")[0] for queue in queues} == {"card"}
    return queues


@pytest.mark.parametrize("fleet", [True], ids=["handed over"], indirect=True)
def test_requests_of_a_lost_card_go_on_at_cpus(fleet: Fleet) -> None:
    """Under their handles, with what the CPUs' engine says after the ids that the card has delivered."""
    with Client(fleet.gateway.address, retry=PATIENT) as client:
        queues = started(client, fleet)
        handles = [queue.handle for queue in queues]
        readings = [Reading(queue) for queue in queues]
        step_until(fleet.gate, readings, BEFORE)
        before = [reading.so_far.ids for reading in readings]
        fleet.lose()
        answers = [reading.whole().ids for reading in readings]
        assert client.get_model("tiny", engine_ids=["card"])[0].state == "FAILED"
        for queue, handle, had, ids in zip(queues, handles, before, answers, strict=True):
            assert (queue.handle, queue.finish_reason) == (handle, FinishReason.MAX_LENGTH)
            assert queue.RequestStatInfo()["handovers"] == 1
            assert ids[: len(had)] == had
        wire = Wire(fleet.cpus.address)
        assert answers == [continued(wire, number, ids) for number, ids in enumerate(answers)]
        wire.close()
        assert client.start_request("tiny", ids=[5], max_new_tokens=1)[0].startswith("cpus/")


def continued(wire: Wire, number: int, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Ids of the same request, begun anew at the CPUs' engine behind those that the card delivered."""
    (state,) = (each for each in wire.call("ListRequests").requests if each.request.request_id == f"r{number}")
    delivered = state.sequences[0].first_position
    assert BEFORE <= delivered < LENGTH
    config = {"max_new_tokens": LENGTH, **KINDS[number]}
    resume = {"sequences": [{"index": 0, "delivered_ids": ids[:delivered]}]}
    fields = {"request_id": f"again {number}", "handover": 1, "resume": resume}
    handle = wire.start("tiny", [1, 2, number], config=config, **fields).handle
    answer = [token_id for message in wire.read(handle, delivered) for token_id in message.elements.token_ids]  # type: ignore[attr-defined]
    return (*ids[:delivered], *answer)


@pytest.mark.parametrize("fleet", [False], ids=["not handed over"], indirect=True)
def test_without_the_operators_word_they_end(fleet: Fleet) -> None:
    with Client(fleet.gateway.address, retry=PATIENT) as client:
        readings = [Reading(queue) for queue in started(client, fleet)]
        step_until(fleet.gate, readings, BEFORE)
        fleet.lose()
        for reading in readings:
            error = reading.error()
            assert isinstance(error, InternalServerError)
            assert "the NVIDIA driver shows no device" in str(error)
            assert reading.queue.finish_reason is FinishReason.ERROR
