"""A real core with a loaded adapter is killed: its requests go on with the adapter, which stays in use meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace import Client, StateError
from support.backends.torch_sequences import random_ids
from support.clocks.waiting import wait_until
from support.models.tiny_adapters import make_tiny_adapter, peft_greedy
from support.models.tiny_models import make_tiny_llama
from support.servers.gate import Gate
from support.servers.processes import core_of, gated_engine_server, gateway_server

COUNT = 24
PROMPT = random_ids(20, seed=8)


def test_a_new_core_has_the_loaded_adapter(tmp_path: Path) -> None:
    """Through a gateway, in the middle of an answer with an adapter that was loaded by a call."""
    folder = make_tiny_llama(tmp_path / "model", max_position_embeddings=128)
    adapter = make_tiny_adapter(tmp_path / "adapter", folder, r=4, seed=4)
    expected = list(peft_greedy(folder, adapter, PROMPT, COUNT))
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate) as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            client.install_model("tiny", path=str(folder), max_batch=2, max_length=128, num_threads=1, lora_max_num=1)
            client.start_model("tiny")
            (loaded,) = client.load_adapter("tiny", "a", str(adapter))
            gate.shut()
            _, queue = client.start_request(
                "tiny", ids=PROMPT, lora_name="a", max_new_tokens=COUNT, do_sample=False, ignore_eos=True
            )
            gate.let(COUNT // 2)
            wait_until(lambda: queue.GeneratedLength() > 0, "nothing is generated")
            for refused in (
                lambda: client.unload_adapter("tiny", "a"),
                lambda: client.load_adapter("tiny", "b", str(make_tiny_adapter(tmp_path / "b", folder, r=2, seed=2))),
            ):
                with pytest.raises(StateError) as refusal:
                    refused()
                assert refusal.value.reason == "LORA_IN_USE"
            core_of(engine).kill()
            gate.open()
            engine.wait_event("core_restarted", model="tiny", epoch=2)
            assert [token for elements in queue for token in elements.ids_from_generate] == expected
            (listed,) = client.list_adapters("tiny")
            assert (listed.name, listed.digest, listed.sequences) == ("a", loaded.digest, 0)
            (gone,) = client.unload_adapter("tiny", "a")
            assert (gone.name, client.list_adapters("tiny")) == ("a", [])
