"""Beam searches whose core or engine is lost in their middle: the texts of searches that nothing disturbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace import Client, ResultQueue
from headrace.types import FinishReason
from support.clocks.waiting import wait_until
from support.servers.crowd import PATIENT, serve
from support.servers.gate import Gate
from support.servers.pair import Pair
from support.servers.processes import core_of, gated_engine_server

LENGTH = 40
KINDS: list[dict[str, Any]] = [
    {"num_beams": 4, "n": 3, "ignore_eos": True},
    {"num_beams": 2, "length_penalty": 2.0, "beam_stopping": "NEVER", "eos_token_id": list(range(0, 384, 24))},
    {"num_beams": 3, "n": 2, "ignore_eos": True, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "response_format": {"type": "regex", "regex": "([a-z]{3,5} ){20,30}"}},
]
Found = list[tuple[list[int], str, FinishReason | None]]


def start_all(client: Client) -> list[ResultQueue]:
    """A queue of each search."""
    return [
        client.start_request("tiny", ids=[1, 2, number], max_new_tokens=LENGTH, **kind)[1]
        for number, kind in enumerate([*KINDS, *KINDS])
    ]


def read(queues: list[ResultQueue]) -> Found:
    """Ids, text and end of every text of the searches."""
    found: Found = []
    for queue in (choice for first in queues for choice in first.choices):
        elements = list(queue)
        ids = [token_id for each in elements for token_id in each.ids_from_generate]
        found.append((ids, "".join(each.text for each in elements), queue.finish_reason))
    return found


def step_until_beams_grow(client: Client, gate: Gate, queues: list[ResultQueue]) -> None:
    """Let steps pass until the searches that run have a quarter of their length, and none has ended."""
    gate.let(LENGTH // 4)
    wait_until(lambda: any(length(client, queue) > 2 for queue in queues), "no beam grows")
    assert max(length(client, queue) for queue in queues) < LENGTH
    assert all(queue.GeneratedLength() == 0 for queue in queues)


def length(client: Client, queue: ResultQueue) -> int:
    """Tokens of the beams so far."""
    return client.get_request(queue.handle).sequences[0].stat["generated_token_length"]  # type: ignore[no-any-return]


def test_bc175_beams_of_a_killed_core_are_searched_again(tiny: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of several searches."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate) as engine, Client(engine.address) as client:
        serve(client, tiny)
        expected = read(start_all(client))
        gate.shut()
        queues = start_all(client)
        step_until_beams_grow(client, gate, queues)
        core_of(engine).kill()
        gate.open()
        engine.wait_event("core_lost")
        assert read(queues) == expected
        assert all(queue.RequestStatInfo()["preemptions"] == 0 for queue in queues)
    assert {len(ids) for ids, _, reason in expected if reason is FinishReason.MAX_LENGTH} == {LENGTH}


def test_beams_of_a_killed_engine_are_searched_at_the_other(pair: Pair) -> None:
    """The caller keeps its handles, and its queues get all texts."""
    with Client(pair.gateway.address, retry=PATIENT) as client:
        expected = read(start_all(client))
        pair.gate.shut()
        queues = start_all(client)
        step_until_beams_grow(client, pair.gate, queues)
        struck = pair.engines["e1"]
        moved = [queue for queue in queues if pair.holder(queue.handle) is struck]
        assert 0 < len(moved) < len(queues)
        struck.process.kill()
        pair.gate.open()
        assert read(queues) == expected
        for queue in queues:
            assert queue.RequestStatInfo()["handovers"] == (1 if queue in moved else 0)
