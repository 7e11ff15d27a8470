"""An engine of two is killed or frozen while streams run: they go on at the other, as if nothing had happened."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest
from headrace import AsyncClient, Client, EngineLostError, ResultQueue, RetryPolicy, UnavailableError
from headrace.types import GenerateStatus
from support.clocks.waiting import LIMIT, wait_until
from support.servers.crowd import GREEDY, PATIENT
from support.servers.pair import Pair
from support.servers.reading import Answer, Reading, joined, step_until

LENGTH = 120
BEFORE = 10
"""Tokens that each stream has at least when the engine is struck."""

WORDS = {"regex": "([a-z]{3,5} ){30,60}"}
KINDS: list[dict[str, Any]] = [
    GREEDY,
    {"ignore_eos": True, "seed": 7, "do_sample": True, "temperature": 1.5, "top_k": 50},
    {"response_format": WORDS, "seed": 5, "do_sample": True, "temperature": 1.5},
    GREEDY | {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"ignore_eos": True, "no_repeat_ngram_size": 2, "seed": 3, "do_sample": True},
    {"ignore_eos": True, "stop_words": ["never said"], "min_new_tokens": 60, "seed": 9, "do_sample": True, "n": 2},
]


def start_all(client: Client) -> list[ResultQueue]:
    """Start two requests of each kind; return the queues of all their sequences."""
    started = [
        client.start_request("tiny", ids=[1, 2, number], max_new_tokens=LENGTH, **config)[1]
        for number, config in enumerate([*KINDS, *KINDS])
    ]
    return [queue for first in started for queue in first.choices]


def compile_words(pair: Pair) -> None:
    """Have both engines compile the grammar: while one of them does, other streams could come to their ends."""
    for engine in pair.engines.values():
        with Client(engine.address) as client:
            assert list(client.generate("tiny", ids=[1], max_new_tokens=2, response_format=WORDS))


def test_streams_of_a_killed_engine_go_on_at_the_other(pair: Pair) -> None:
    """Whatever they are: guided, seeded, penalised, several of one request. The caller keeps its handles."""
    compile_words(pair)
    with Client(pair.gateway.address, retry=PATIENT) as client:
        expected = [reading.whole() for reading in map(Reading, start_all(client))]
        pair.gate.shut()
        queues = start_all(client)
        readings = [Reading(queue) for queue in queues]
        step_until(pair.gate, readings, BEFORE)
        assert max(reading.length for reading in readings) < LENGTH
        struck = pair.engines["e1"]
        moved = [queue for queue in queues if pair.holder(queue.handle) is struck]
        assert 0 < len(moved) < len(queues)
        struck.process.kill()
        pair.gate.open()
        assert [reading.whole() for reading in readings] == expected
        for queue in queues:
            stat = queue.RequestStatInfo()
            assert stat["handovers"] == (1 if queue in moved else 0)
            assert stat["generated_token_length"] == queue.GeneratedLength()
        first = moved[0]
        assert client.get_request(first.handle).handle == first.handle
        assert client.open_queue(first.handle).GenerateStatus() is GenerateStatus.Generating  # all of it unread
        client.release_request(first.handle)


def test_a_frozen_engine_is_left_and_its_copies_go(pair: Pair) -> None:
    """Slow is told from lost after ten seconds; when it wakes, what it still holds is released."""
    compile_words(pair)
    with Client(pair.gateway.address, retry=PATIENT) as client, Client(pair.engines["e1"].address) as beside:
        expected = [reading.whole() for reading in map(Reading, start_all(client))]
        for request in client.list_requests():
            client.release_request(request.handle)
        pair.gate.shut()
        queues = start_all(client)
        readings = [Reading(queue) for queue in queues]
        step_until(pair.gate, readings, BEFORE)
        assert max(reading.length for reading in readings) < LENGTH
        struck = pair.engines["e1"]
        struck.process.send_signal(signal.SIGSTOP)
        try:
            pair.gate.open()
            assert [reading.whole() for reading in readings] == expected
        finally:
            struck.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not beside.list_requests(), "copies of requests stay on the engine that was left", LIMIT)


def test_a_start_that_a_frozen_engine_leaves_goes_elsewhere(pair: Pair) -> None:
    """The engine never knew it, or drops what nobody waits for any more."""
    struck = pair.engines["e1"]
    with Client(pair.gateway.address, retry=PATIENT) as client, Client(struck.address, retry=PATIENT) as beside:
        struck.process.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            started = [client.start_request("tiny", ids=[1, 2], max_new_tokens=LENGTH, **GREEDY) for _ in range(2)]
            print(f"two starts took {time.monotonic() - begun:.1f} s beside a frozen engine")
            assert all(handle.startswith("e2/") for handle, _ in started)
            assert len({Reading(queue).whole() for _, queue in started}) == 1
        finally:
            struck.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not beside.list_requests(), "the frozen engine keeps a start that went elsewhere")


def test_the_last_engine_lost_for_ever_ends_the_queue(pair: Pair) -> None:
    """It says so: no other engine took over."""
    with Client(pair.gateway.address, retry=RetryPolicy(give_up_after=3)) as client:
        pair.gate.shut()
        _, queue = client.start_request("tiny", ids=[1, 2], max_new_tokens=LENGTH, ignore_eos=True)
        for engine in pair.engines.values():
            engine.process.kill()
        with pytest.raises(EngineLostError, match="no other one took over"):
            list(queue)
        assert queue.GenerateStatus() is GenerateStatus.InternalError


def test_without_hand_over_a_queue_waits_for_its_engine(pair: Pair) -> None:
    impatient = RetryPolicy(give_up_after=0.5)
    with Client(pair.gateway.address, retry=impatient, handover=False) as client:
        pair.gate.shut()
        handle, queue = client.start_request("tiny", ids=[1, 2], max_new_tokens=LENGTH, ignore_eos=True)
        pair.gate.let(5)
        pair.holder(handle).process.kill()
        with pytest.raises(UnavailableError, match="does not answer"):
            list(queue)
        assert queue.GenerateStatus() is not GenerateStatus.InternalError
        pair.gate.open()


def test_queues_of_an_event_loop_go_on_too(pair: Pair) -> None:
    async def read(queue: Any) -> Answer:
        return joined([element async for element in queue])

    async def run() -> None:
        async with AsyncClient(pair.gateway.address, retry=PATIENT) as client:
            config = KINDS[1] | {"max_new_tokens": LENGTH}
            _, alone = await client.start_request("tiny", ids=[1, 2], **config)
            expected = await read(alone)
            await asyncio.to_thread(pair.gate.shut)
            handle, queue = await client.start_request("tiny", ids=[1, 2], **config)
            reading = asyncio.create_task(read(queue))
            await asyncio.to_thread(pair.gate.let, BEFORE)
            pair.holder(handle).process.kill()
            pair.gate.open()
            assert await reading == expected
            assert (await queue.RequestStatInfo())["handovers"] == 1

    asyncio.run(run())
