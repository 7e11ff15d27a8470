"""A step that lasts longer than the ping limit is waited for, with the real model."""

from __future__ import annotations

from random import Random

from headrace import Client
from support.models.text_accuracy import smollm2
from support.servers.processes import core_of, engine_server

PROMPT = [Random(7).randrange(100, 40_000) for _ in range(1500)]


def test_a2_a_long_step_is_finished_by_the_core_that_began_it() -> None:
    """Without a target all of it is one step, longer than the limit; the answer is a patient engine's.

    A third of what the step has taken is long enough for one job of it, however busy the machine.
    """
    ids, limit = [], 600.0
    for _ in range(2):
        arguments = ("--backend", "cpu", "--step-target", "0", "--core-ping-limit", f"{limit:g}")
        with engine_server("e1", *arguments) as engine, Client(engine.address) as client:
            client.install_model("smol", path=str(smollm2()), max_length=2048, max_batch=2)
            client.start_model("smol")
            core = core_of(engine)
            _, queue = client.start_request("smol", ids=PROMPT, max_new_tokens=8, do_sample=False, ignore_eos=True)
            ids.append([token for element in queue for token in element.ids_from_generate])
            assert core_of(engine).pid == core.pid
            assert "core_lost" not in [event["event"] for event in engine.events]
            limit = max(1.0, (queue.RequestStatInfo()["time_to_first_token"] or 0) / 3000)
    assert len(ids[0]) == 8
    assert ids[0] == ids[1]
