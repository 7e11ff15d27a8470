"""Two engines behind a gateway, in containers: one is killed, all are restarted, and a third one joins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from headrace import Client, ResultQueue
from headrace.types import FinishReason, ModelState
from support.backends.same_tokens import same_tokens
from support.clocks.waiting import wait_until
from support.deployment.containers import Stack, run
from support.servers.crowd import PATIENT
from support.servers.reading import Answer, Reading

STREAMS = 32
FEW = 9
LENGTH = 64
PATIENCE = 240.0
SCHEMA = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
KINDS: list[dict[str, Any]] = [
    {"do_sample": False, "ignore_eos": True},
    {"do_sample": True, "temperature": 0.8, "seed": 11, "ignore_eos": True},
    {"do_sample": False, "response_format": {"json_schema": SCHEMA}},
]

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    stack = Stack("headrace-several", "docker-compose.yml", "tests/compose/several.yml")
    stack.compose("down", "--volumes", "--timeout", "1")
    try:
        have(stack, 2)
        yield stack
    finally:
        print(stack.compose("logs", "--no-color", "--tail", "50"))
        stack.compose("down", "--volumes", "--timeout", "1")


@contextmanager
def two_engines(stack: Stack) -> Iterator[Client]:
    """Yield a client outside the containers, once the model runs on two engines and on no others."""
    have(stack, 2)
    with Client(stack.address, api_key=stack.key, retry=PATIENT) as client:
        wait_until(lambda: len(serving(client)) == 2, "the model does not run on both engines", PATIENCE)
        yield client


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with two_engines(stack) as client:
        yield client


@pytest.fixture(scope="module")
def expected(stack: Stack) -> list[Answer]:
    """The answers of an undisturbed run."""
    with two_engines(stack) as client:
        return [reading.whole(PATIENCE) for reading in map(Reading, start(client, STREAMS))]


def have(stack: Stack, engines: int) -> None:
    """Have so many engines: start those that were killed, add or remove others."""
    stack.compose("up", "--detach", "--no-build", "--no-recreate", "--scale", f"engine={engines}")


def serving(client: Client) -> set[str]:
    """Engines on which the model runs."""
    return {model.engine for model in client.list_models() if model.state is ModelState.RUNNING}


def start(client: Client, count: int) -> list[ResultQueue]:
    """Start plain, seeded and guided streams."""
    return [
        client.start_request("smol", f"Item {number} of the list is", max_new_tokens=LENGTH, **KINDS[number % 3])[1]
        for number in range(count)
    ]


def begun(queues: list[ResultQueue]) -> list[Reading]:
    """Read queues, of which each has begun."""
    readings = [Reading(queue) for queue in queues]
    wait_until(lambda: min(reading.length for reading in readings) >= 2, "some stream does not begin", PATIENCE)
    return readings


def compare(expected: list[Answer], readings: list[Reading]) -> None:
    """Assert that all answers are whole, and the same as undisturbed."""
    answers = [reading.whole(PATIENCE) for reading in readings]
    for answer, queue in zip(answers, (reading.queue for reading in readings), strict=True):
        assert len(answer.ids) == LENGTH or queue.finish_reason is not FinishReason.MAX_LENGTH
    same_tokens([answer.ids for answer in expected], [answer.ids for answer in answers])
    assert [answer.text for answer in answers] == [answer.text for answer in expected]


def test_a_killed_engine_costs_no_stream(stack: Stack, client: Client, expected: list[Answer]) -> None:
    queues = start(client, STREAMS)
    readings = begun(queues)
    victim = stack.container("engine").split()[0]
    name = "ip-" + stack.address_of(victim).replace(".", "-")
    running = [queue for queue in queues if queue.finish_reason is None and queue.handle.startswith(f"{name}/")]
    assert running, "the engine has none of the streams"
    run(["docker", "kill", victim])
    compare(expected, readings)
    moved = [queue for queue in running if queue.RequestStatInfo()["handovers"]]
    print(f"{len(moved)} of {len(running)} streams of the killed engine were handed over")
    assert moved


def test_engines_that_join_are_noticed_in_seconds(stack: Stack, client: Client) -> None:
    before = serving(client)
    have(stack, 3)
    wait_until(lambda: len(serving(client)) == 3, "the new engine does not serve", PATIENCE)
    assert before < serving(client)


def test_all_engines_are_restarted_under_streams(stack: Stack, client: Client, expected: list[Answer]) -> None:
    for container in stack.container("engine").split():
        readings = begun(start(client, FEW))
        run(["docker", "restart", "--time", "20", container])
        compare(expected[:FEW], readings)
        wait_until(lambda: len(serving(client)) == 2, "the engine does not come back", PATIENCE)
