"""One key's flood, and another key's request: counted in steps of the core."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace import Client, RetryPolicy
from headrace.errors import OverloadedError
from headrace_gateway.access.api_keys import new_key
from support.models.tiny_models import make_tiny_llama
from support.servers.gate import Gate
from support.servers.processes import gated_engine_server, gateway_server

from .conftest import MODEL

NEW, BATCH = 5, 2


def test_a_flood_of_one_key_leaves_the_next_place_to_another(tmp_path: Path) -> None:
    """Of 2 places, each taken for 5 steps, the other key's request has the first that becomes free."""
    made = {name: new_key(name) for name in ("flood", "other")}
    keys, gate = tmp_path / "keys.toml", Gate(tmp_path / "gate")
    keys.write_text("".join(lines for _, lines in made.values()))
    model = ("--model", f"{MODEL}={make_tiny_llama(tmp_path / 'tiny')}", "--num-threads", "1", "--max-length", "256")
    limits = ("--max-batch", str(BATCH), "--max-waiting", "16")
    with (
        gated_engine_server("e1", gate, *model, *limits) as engine,
        gateway_server({"e1": engine.address}, "--keys", str(keys)) as gateway,
        Client(gateway.address, api_key=made["flood"][0], retry=RetryPolicy(give_up_after=0.0)) as flood,
        Client(gateway.address, api_key=made["other"][0], retry=RetryPolicy(give_up_after=0.0)) as other,
    ):
        engine.wait_event("model_ready")
        gateway.wait_event("engine_reached")
        gate.shut()
        started = 0
        with pytest.raises(OverloadedError, match="waiting"):
            while started <= BATCH + 16:
                flood.start_request(MODEL, f"Flood {started}", max_new_tokens=NEW, ignore_eos=True)
                started += 1
        assert started > BATCH + 4, "the flood waits"
        _, queue = other.start_request(MODEL, "Hello", max_new_tokens=NEW, ignore_eos=True)
        steps = 0
        while not (state := other.get_request(queue.handle)).sequences[0].status.terminal:
            gate.let(1)
            steps += 1
            assert steps < 200, state
        assert steps <= 2 * (NEW + 3), "it waited for more than the requests that were running"
