"""An engine service whose models are computed by two ranks each."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace import Client, InvalidRequestError

from support.contract.places import (
    BROKEN_MODEL,
    LONG_LENGTH,
    LONG_MODEL,
    MAX_BATCH,
    MAX_LENGTH,
    MODEL,
    RANKS,
    SMALL_POOL_MODEL,
    Folders,
    Place,
)
from support.models.processor_files import processor_arguments
from support.models.tiny_models import make_tiny_mistral
from support.servers.processes import engine_server

SETTINGS: Mapping[str, Any] = {"num_threads": 2, "tensor_parallel": 2}
SIZES: Mapping[str, Mapping[str, Any]] = {
    MODEL: {"max_length": MAX_LENGTH, "max_batch": MAX_BATCH[MODEL]},
    LONG_MODEL: {"max_length": LONG_LENGTH, "max_batch": MAX_BATCH[LONG_MODEL], "num_blocks": 1300},
    SMALL_POOL_MODEL: {"max_length": 128, "max_batch": 8, "num_blocks": 20},
    BROKEN_MODEL: {"max_length": 64},
}


def skip_where_ranks_refuse(client: Client, place: Place, **config: Any) -> None:
    """Skip a test whose models need what ranks do not share yet, by the engine's own word."""
    try:
        client.install_model("asked", path=str(place.folder), **config, **place.settings)
    except InvalidRequestError as refusal:
        fields = [violation["field"] for violation in refusal.details["field_violations"]]
        if (refusal.reason, fields) != ("NOT_SUPPORTED", ["config.tensor_parallel"]):
            raise
        pytest.skip(str(refusal))
    client.release_model("asked")


@contextlib.contextmanager
def ranked_place(
    backend: str, root: Path, folders: Folders, processors: dict[str, Path], names: Collection[str]
) -> Iterator[Place]:
    """Yield a server with models of the other paths, installed and running; the long one has a head a rank."""
    long = make_tiny_mistral(
        root / "long", num_hidden_layers=1, hidden_size=64, intermediate_size=1024, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=64, max_position_embeddings=LONG_LENGTH,
    )  # fmt: skip
    paths = {MODEL: folders.tiny, LONG_MODEL: long, SMALL_POOL_MODEL: folders.tiny, BROKEN_MODEL: folders.broken}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(engine_server("e1", "--backend", backend, *processor_arguments(processors)))
        client = stack.enter_context(Client(server.address))
        for name in names:
            client.install_model(name, path=str(paths[name]), **SIZES[name], **SETTINGS)
            client.start_model(name)
        connect = partial(Client, server.address)
        slowest = LONG_MODEL if LONG_MODEL in names else MODEL
        yield Place(RANKS[backend], client, connect, server.address, folders.tiny, long, SETTINGS, (server,), slowest)
