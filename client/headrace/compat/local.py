"""Clients of a server or of an engine in this process, and models that run over them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from typing import Any, Unpack

from headrace.client import Client
from headrace.fields import InstallFields
from headrace.model_types import ModelInfo

IN_PROCESS = "inprocess:"
"""Address of an engine in this process."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]+")
_LONGEST_NAME = 128

logger = logging.getLogger(__name__)


def open_client(address: str | None = None, **options: Any) -> Client:
    """Return a client of the server at an address; without an address, of a new engine in this process.

    Closing the client, or leaving the process, frees everything of an engine in this process. What a server runs stays
    as it was left.

    Args:
        address: address for `headrace.Client`; None or "": an engine in this process (package headrace-engine).
        **options: further arguments of `headrace.Client`.

    Raises:
        ValueError, TypeError, ImportError: as `headrace.Client`.
    """
    client = Client(address or IN_PROCESS, **options)
    if not is_in_process(address):
        logger.info("models of %s stay as they are when this process ends; release_model frees one", address)
    return client


def is_in_process(address: str | None) -> bool:
    """True if `open_client` starts an engine in this process for the address."""
    return not address or address == IN_PROCESS


def name_of(path: str) -> str:
    """Return a name for the model at a path or hub name: its last part, in characters that names of models have."""
    last = os.path.basename(os.path.normpath(path))
    return _NOT_IN_NAMES.sub("_", last)[:_LONGEST_NAME]


def run_model(client: Client, name: str, path: str, **fields: Unpack[InstallFields]) -> list[ModelInfo]:
    """Install a model and start it; its state is RUNNING afterwards. Do nothing where it runs with the same config.

    Args:
        client: client of the engine or gateway.
        name: name of the model in all later calls.
        path: directory, file or hub name on the engine's host.
        **fields: fields of `headrace.fields.InstallFields`.

    Returns:
        The model on each engine.

    Raises:
        HeadraceError: as `install_model` and `start_model` of the client.
    """
    client.install_model(name, path, **fields)
    return client.start_model(name)


def end_model(client: Client, name: str, *, engine_ids: Sequence[str] = ()) -> None:
    """Stop a model and release it: free everything of it, including its name.

    Raises:
        HeadraceError: as `stop_model` and `release_model` of the client.
    """
    client.stop_model(name, engine_ids=engine_ids)
    client.release_model(name, engine_ids=engine_ids)
