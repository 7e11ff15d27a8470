"""The three paths on which the contract holds, and the models that the conformance suite serves on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace import Client

PATHS = ("inprocess", "direct", "gateway")
MODEL = "tiny"
LONG_MODEL = "long"
SMALL_POOL_MODEL = "small-pool"
BROKEN_MODEL = "broken"
MAX_LENGTH = 256
LONG_LENGTH = 10_240


@dataclass(frozen=True)
class Folders:
    """Model directories on disk: for most tests, for long answers, and one whose logits are never finite."""

    tiny: Path
    long: Path
    broken: Path


@dataclass(frozen=True)
class Place:
    """Where the suite's calls go.

    Attributes:
        path: one of PATHS.
        client: a client that all tests on this path share.
        connect: makes another client to the same server; takes the keywords of Client.
    """

    path: str
    client: Client
    connect: Callable[..., Client]
