"""An engine service whose models run on the simulated device, through the whole path of the cuda backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace import Client
from headrace_engine.environment import NATIVE_VARIABLE
from native.build import HAS_NVCC, native_libraries

from support.contract.places import MAX_BATCH, MAX_LENGTH, MODEL, SIM, SMALL_POOL_MODEL, Place
from support.models.processor_files import processor_arguments, write_processors
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import Server, simulated_engine

SETTINGS = {"max_prefill_tokens": 48, "num_threads": 1}
"""The simulator takes a millisecond per token: the largest step runs once to be measured, and once as a warm-up."""
SIZES: Mapping[str, Mapping[str, Any]] = {
    MODEL: {"max_length": MAX_LENGTH, "max_batch": MAX_BATCH[MODEL]},
    SMALL_POOL_MODEL: {"max_length": 128, "max_batch": 8, "num_blocks": 20, "num_host_blocks": 60},
}
"""Settings of the models. Sequences preempted in the small pool move to host memory, and come back."""


@contextlib.contextmanager
def simulated_place(folder: Path) -> Iterator[Place]:
    """Yield a server with the models that tests of this path use, installed and running; skip without the simulator."""
    if not HAS_NVCC:
        pytest.skip("the simulator needs CUDA's headers, and there is no nvcc")
    model = make_tiny_llama(
        folder / "wide", max_position_embeddings=MAX_LENGTH, hidden_size=128, head_dim=64, num_hidden_layers=1, seed=1
    )
    with contextlib.ExitStack() as stack:
        server = _start(stack, write_processors(folder))
        client = stack.enter_context(Client(server.address))
        for name, sizes in SIZES.items():
            client.install_model(name, path=str(model), **sizes, **SETTINGS)
            client.start_model(name)
        codes = {**SETTINGS, "kv_cache_mode": "INT8"}
        yield Place(SIM, client, partial(Client, server.address), server.address, model, model, codes, (server,), MODEL)


def _start(stack: contextlib.ExitStack, processors: dict[str, Path]) -> Server:
    """Start the service; only it and its cores use the libraries of the tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(NATIVE_VARIABLE, str(native_libraries()))
        return stack.enter_context(simulated_engine("e1", *processor_arguments(processors)))
