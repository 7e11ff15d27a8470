"""An engine whose pool is too small for the requests that tests start at once, and random fields of these."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace import Client

from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import VOCAB_SIZE
from support.servers.gate import Gate
from support.servers.processes import Server, gated_engine_server

FORMATS: list[dict[str, Any]] = [
    {"type": "json_object"},
    {"type": "regex", "regex": "(ab|cd|[0-9]{2}){5,30}"},
    {"type": "choice", "choice": ["yes, indeed", "no, never", "é👍"]},
]

Scarce = tuple[Server, Gate, Client]


class Chance(random.Random):
    """Random fields of requests."""

    def ids(self, most: int) -> list[int]:
        """Return up to `most` ids of the vocabulary, at least one."""
        return [self.randrange(3, VOCAB_SIZE) for _ in range(self.randint(1, most))]

    def sometimes(self, share: float, **fields: Any) -> dict[str, Any]:
        """Return the fields in a share of all cases, else none."""
        return fields if self.random() < share else {}


@contextmanager
def scarce_engine(root: Path, backend: str, **config: Any) -> Iterator[Scarce]:
    """Run an engine that serves "tiny", 6 sequences of 128 tokens at once; yield it with its gate and a client."""
    folder = make_tiny_llama(root / "tiny", max_position_embeddings=256)
    gate = Gate(root / "steps")
    with gated_engine_server("e1", gate, "--backend", backend) as server, Client(server.address) as client:
        sizes = {"max_batch": 6, "max_length": 128, "num_threads": 1}
        client.install_model("tiny", path=str(folder), dtype="FLOAT32", **{**sizes, **config})
        client.start_model("tiny")
        yield server, gate, client
