"""Real cores that are killed, stopped and poisoned: readers see a pause, and the same tokens."""

from __future__ import annotations

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace import Client, HeadraceError
from headrace.types import FinishReason
from headrace_engine import result_types
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.engine import Engine
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.process import launch_process
from headrace_engine.request_types import StartRequest
from support.clocks.waiting import LIMIT, wait_until
from support.models.tiny_models import make_idle_layers
from support.servers.gate import Gate
from support.servers.processes import Server, core_of, gated_engine_server, gateway_server, health_of

LENGTH = 120
RULES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "no_repeat_ngram_size": 2, "bad_words_ids": [[9], [8, 7]]}
TOLD = {"prompt_logprobs": 2, "enable_tensors_from_model_inference": True}
ANSWERS = [
    *({"do_sample": False, **rules} for rules in ({}, TOLD, {**RULES, **TOLD})),
    *({"do_sample": True, "temperature": 1.5, "seed": seed, **rules} for seed, rules in enumerate(({}, {}, RULES))),
]
"""Configs of the requests that run at once: more than a batch, so that some wait while the core is lost."""

POISONED_CORE = Path(__file__).with_name("poisoned_core.py")


def serve(client: Client, tiny: Path, **config: Any) -> None:
    client.install_model("tiny", path=str(tiny), max_batch=4, max_length=1024, num_threads=1, **config)
    client.start_model("tiny")


def start_mid_answer(client: Client, gate: Gate) -> list[object]:
    """The queues of all answers, once the core has taken a few steps of them and may take no more."""
    gate.shut()
    queues = start_all(client, wait=False)
    gate.let(LENGTH // 4)
    return queues


def start_all(client: Client, *, wait: bool = True, **fields: Any) -> list[object]:
    """The queues of all answers, once the first one has begun."""
    asked = {"max_new_tokens": LENGTH, "ignore_eos": True, **fields}
    queues = [
        client.start_request("tiny", ids=[1, 2, number], **{**asked, **config})[1]  # type: ignore[dict-item]
        for number, config in enumerate(ANSWERS)
    ]
    if wait:
        wait_until(lambda: queues[0].GeneratedLength() > 0, "nothing is generated")
    return list(queues)


def details_of_all(client: Client, queues: list[object]) -> list[tuple[object, list[bytes]]]:
    """What was told of each prompt that asked, and the hidden states of each token; the queues are read by this."""
    answers = []
    for queue, config in zip(queues, ANSWERS, strict=True):
        rows = [row for element in queue for row in element.tensors_from_model_inference]  # type: ignore[attr-defined]
        asked = 0 if "prompt_logprobs" in config else None
        piece = client.get_request(queue.handle, prompt_logprobs_from=asked).prompt_logprobs  # type: ignore[attr-defined]
        assert (piece is not None) == bool(rows) == ("prompt_logprobs" in config)
        answers.append((piece, [row["hidden_states"].data for row in rows]))
    return answers


def read_all(queues: list[object]) -> list[tuple[list[int], str]]:
    """Ids and text of every answer; the client checks that no token is missing or comes twice."""
    answers = []
    for queue in queues:
        elements = list(queue)  # type: ignore[call-overload]
        ids = [token_id for element in elements for token_id in element.ids_from_generate]
        answers.append((ids, "".join(element.text for element in elements)))
    return answers


def assert_replaced(engine: Server, client: Client, reason: str) -> None:
    """The core is lost, health tells of it, and is well again when the next one is at work."""
    for service in ("", "headrace.v1.RequestService"):
        wait_until(lambda s=service: health_of(engine.address, s) == "NOT_SERVING", "health does not tell")
    assert health_of(engine.address, "headrace.v1.ModelService") == "SERVING"
    assert client.get_model("tiny")[0].state == "RUNNING"
    assert reason in engine.wait_event("core_lost", model="tiny", epoch=1)["reason"]
    engine.wait_event("core_restarted", model="tiny", epoch=2)
    wait_until(lambda: health_of(engine.address) == "SERVING", "health does not follow")
    assert client.engine_stats("tiny")[0].core_epoch == 2


def test_bc175_a_killed_core_is_replaced_and_answers_are_whole(tiny: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of greedy and sampled answers: the same tokens as without, after a pause."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate) as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            serve(client, tiny)
            undisturbed = read_all(start_all(client))
            queues = start_mid_answer(client, gate)
            core_of(engine).kill()
            gate.open()
            engine.wait_event("core_lost")
            assert max(queue.GeneratedLength() for queue in queues) < LENGTH  # type: ignore[attr-defined]
            assert_replaced(engine, client, "SIGKILL")
            assert read_all(queues) == undisturbed
            assert all(queue.finish_reason is FinishReason.MAX_LENGTH for queue in queues)  # type: ignore[attr-defined]
            assert all(queue.RequestStatInfo()["preemptions"] == 0 for queue in queues)  # type: ignore[attr-defined]
            assert {len(ids) for ids, _ in undisturbed} == {LENGTH}
            again = [client.open_queue(queue.handle) for queue in queues]  # type: ignore[attr-defined]
            assert details_of_all(client, again) == details_of_all(client, start_all(client))
            assert "".join(client.generate("tiny", "Hello", max_new_tokens=4, ignore_eos=True))


def test_a_core_killed_with_drafts_in_flight_is_replaced(tiny: Path, tmp_path: Path) -> None:
    """The draft model computes what the model does, in a tenth of the time: its ids are in steps when both are lost."""
    gate, slow = Gate(tmp_path / "steps"), make_idle_layers(tmp_path / "slow", tiny, 24)
    with gated_engine_server("e1", gate) as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            serve(client, slow, speculation="DRAFT", draft_model=str(tiny))
            answers = [
                read_all(start_all(client, use_speculation=False)),
                read_all(start_all(client)),
            ]
            assert answers[0] == answers[1]
            before = client.engine_stats("tiny")[0].drafted_tokens
            queues = start_mid_answer(client, gate)
            wait_until(lambda: client.engine_stats("tiny")[0].drafted_tokens > before, "nothing is drafted")
            core_of(engine).kill()
            gate.open()
            engine.wait_event("core_lost")
            assert max(queue.GeneratedLength() for queue in queues) < LENGTH  # type: ignore[attr-defined]
            assert_replaced(engine, client, "SIGKILL")
            assert read_all(queues) == answers[0]


def test_bc175_a_core_that_hangs_is_killed_and_replaced(tiny: Path, tmp_path: Path) -> None:
    """SIGSTOP: nothing is closed, nothing is said. Pings that are not answered tell."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate, "--core-ping-limit", "6") as engine, Client(engine.address) as client:
        serve(client, tiny)
        undisturbed = read_all(start_all(client))
        queues = start_mid_answer(client, gate)
        core = core_of(engine)
        core.send_signal(signal.SIGSTOP)
        gate.open()
        assert_replaced(engine, client, "made no progress for 6 s (--core-ping-limit) and was killed")
        core.wait(LIMIT)
        assert read_all(queues) == undisturbed


def test_bc207_requests_are_refused_until_the_new_core_works(tiny: Path, tmp_path: Path) -> None:
    """Clients see UNAVAILABLE with a time to come back; those that come back are served, with no manual step."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate) as engine, Client(engine.address) as client:
        serve(client, tiny)
        gate.shut()  # The new core gets no further than its first step.
        core_of(engine).kill()
        wait_until(lambda: health_of(engine.address) == "NOT_SERVING", "health does not tell")
        with pytest.raises(HeadraceError) as refusal:
            client.start_request("tiny", ids=[1], max_new_tokens=1, timeout=0.5)
        assert refusal.value.reason in ("CORE_RESTARTING", "DEADLINE_EXCEEDED")
        gate.open()
        _, queue = client.start_request("tiny", ids=[1], max_new_tokens=1, ignore_eos=True)
        assert len(queue.Get().ids_from_generate) == 1  # type: ignore[union-attr]


async def test_a_request_that_brings_its_core_down_is_found(tiny: Path) -> None:
    """A segmentation fault with three other requests in the step: they go on, and the poison ends with an error."""
    launcher = partial(launch_process, program=(sys.executable, str(POISONED_CORE)))
    engine = Engine(EngineOptions(name="e1"), launcher)
    try:
        await engine.install_model(RuntimeConfig("tiny", str(tiny), max_batch=4, max_length=1024, num_threads=1))
        await engine.start_model("tiny")
        healthy = [start(prompt, 1000) for prompt in ((1, 2), (3, 4), (5, 6))]  # They are there when the poison comes.
        undisturbed = [await answer(engine, request) for request in healthy]
        answers = [asyncio.create_task(answer(engine, request)) for request in healthy]
        await asyncio.sleep(0)  # They start.
        for view in engine.list_requests("", running_only=True)[0]:
            await engine.get_request(handle=view.request.handle, from_position=0, wait=60)
        _, end = await answer(engine, start((7, 8)))
        assert end.finish_reason is result_types.FinishReason.ERROR
        assert end.error is not None
        assert "was running when the core crashed twice" in end.error.message
        assert "SIGSEGV" in end.error.message
        assert [(ids, end.finish_reason) for ids, end in await asyncio.gather(*answers)] == [
            (ids, end.finish_reason) for ids, end in undisturbed
        ]
        assert engine.get_model("tiny").core_epoch == 3
    finally:
        await engine.close()


def start(prompt: tuple[int, ...], length: int = LENGTH) -> StartRequest:
    config = GenerationConfig(do_sample=False, ignore_eos=True, max_new_tokens=length)
    return StartRequest("tiny", prompt, config)


async def answer(engine: Engine, request: StartRequest) -> tuple[list[int], result_types.EndRecord]:
    """All ids of an answer, and its end."""
    accepted = await engine.start_request(request)
    ids: list[int] = []
    async for result in engine.read(accepted.handle, 0, 0, ""):
        ids += result.elements.token_ids if result.elements else []
    assert result.end is not None
    return ids, result.end
