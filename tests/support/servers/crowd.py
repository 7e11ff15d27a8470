"""Many answers at once from one tiny model: starting them, and their expected results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace import Client, ResultQueue, RetryPolicy
from headrace.types import FinishReason

from support.servers.processes import Server
from support.servers.reading import Answer, Reading
from support.servers.wire import Wire

BATCH = 32
LENGTH = 200
"""Tokens per answer."""

GREEDY: dict[str, Any] = {"ignore_eos": True, "do_sample": False}
SAMPLED: dict[str, Any] = {"ignore_eos": True, "do_sample": True, "temperature": 1.5}
PATIENT = RetryPolicy(give_up_after=120)


def serve(client: Client, folder: Path) -> None:
    """Install and start the model."""
    client.install_model("tiny", path=str(folder), max_batch=BATCH, max_length=2048, num_threads=1)
    client.start_model("tiny")


def start_all(client: Client, count: int = BATCH) -> list[ResultQueue]:
    """Start greedy and sampled answers, alternately; return their queues."""
    configs = [SAMPLED | {"seed": number} if number % 2 else GREEDY for number in range(count)]
    return [
        client.start_request("tiny", ids=[1, 2, number], max_new_tokens=LENGTH, **config)[1]
        for number, config in enumerate(configs)
    ]


def undisturbed_answers(client: Client, count: int = BATCH) -> list[Answer]:
    """Return the answers of `start_all` in the absence of faults."""
    answers = [reading.whole() for reading in map(Reading, start_all(client, count))]
    assert {len(answer.ids) for answer in answers} == {LENGTH}
    return answers


def assert_whole(readings: list[Reading], expected: list[Answer], engine: Server | None = None) -> None:
    """Assert that every queue has its whole answer once and in order, with the engine's checksum if one is given."""
    for reading, answer in zip(readings, expected, strict=True):
        assert reading.whole() == answer
        assert reading.queue.finish_reason is FinishReason.MAX_LENGTH
    if engine is not None:
        wire = Wire(engine.address)
        for reading, answer in zip(readings, expected, strict=True):
            assert wire.state(reading.queue.handle).sequences[0].checksum == answer.checksum
        wire.close()
