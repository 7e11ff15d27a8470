"""The three paths on which the contract holds, and the models that the conformance suite serves on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import Client
from headrace_proto.wire.transport import Transport

from support.servers.processes import Server

PATHS = ("inprocess", "direct", "gateway")
SIM = "sim"
"""Path of an engine on the simulated device, where only tests marked `sim` run."""
RANKS = {"cpu": "ranks_cpu", "torch": "ranks_torch"}
"""By backend, paths of engines whose models are computed by two ranks, where tests marked `ranks` run."""
ALL_ON_RANKS = "--all-on-ranks"
"""Option of `pytest tests/conformance`, with a backend: all tests run on that path, and on no other."""

ASYNC = {
    "test_results.py": ("inprocess-async", "gateway-async"),
    "test_elements.py": ("inprocess-async", "gateway-async"),
    "test_requests.py": ("gateway-async",),
    "test_request_ends.py": ("gateway-async",),
    "test_stops.py": ("inprocess-async", "gateway-async"),
    "test_candidates.py": ("gateway-async",),
    "test_prompt_logprobs.py": ("gateway-async",),
    "test_embeddings.py": ("inprocess-async", "gateway-async"),
}
"""Files whose tests also run with the asynchronous client, and their paths."""

SYNC_ONLY = (
    "test_one_get_returns_an_answer_of_ten_thousand_tokens",
    "test_preemption_is_invisible",
    "test_policy_return_ends_what_there_is_no_memory_for",
)
"""Tests left out of these: they take long and test the engine."""

MODEL = "tiny"
LONG_MODEL = "long"
SMALL_POOL_MODEL = "small-pool"
BROKEN_MODEL = "broken"
MAX_LENGTH = 256
LONG_LENGTH = 10_240
MAX_BATCH = {MODEL: 8, LONG_MODEL: 2}


@dataclass(frozen=True)
class Folders:
    """Model directories on disk: for most tests, for long answers, and with logits that are never finite."""

    tiny: Path
    long: Path
    broken: Path


@dataclass(frozen=True)
class Place:
    """Server that the suite calls.

    Attributes:
        path: one of PATHS, SIM or RANKS.
        client: a client that all tests on this path share.
        connect: makes another client to the same server; takes the keywords of Client.
        target: address that it connects to.
        folder: model directory of MODEL.
        long: that of LONG_MODEL, or of MODEL where there is none.
        settings: settings with which models of this path are installed.
        servers: processes that it needs.
        slowest: model whose answers take longest. What is to run still when a test goes on runs there: an answer of
            MODEL may end before a busy machine comes to the next line.
    """

    path: str
    client: Client
    connect: Callable[..., Client]
    target: str | Transport
    folder: Path
    long: Path
    settings: Mapping[str, Any] = field(default_factory=lambda: {"num_threads": 1})
    servers: tuple[Server, ...] = ()
    slowest: str = LONG_MODEL


def paths_of(file: str, test: str) -> tuple[str, ...]:
    """Return the paths on which a test runs, by the names of its file and itself."""
    return PATHS if test in SYNC_ONLY else (*PATHS, *ASYNC.get(file, ()))
