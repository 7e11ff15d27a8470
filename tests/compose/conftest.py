"""One engine and a gateway, for the tests of a module: up before the first, down with its volumes after the last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace import Client
from headrace.types import ModelState
from support.clocks.waiting import wait_until
from support.deployment.containers import Stack

LOADING = 180.0
"""Seconds within which the model must run."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    stack = Stack()
    stack.compose("down", "--volumes", "--timeout", "1")
    try:
        stack.compose("up", "--detach", "--no-build")
        yield stack
    finally:
        print(stack.compose("logs", "--no-color", "--tail", "50"))
        stack.compose("down", "--volumes", "--timeout", "1")


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    """A client on this machine, outside the containers, once the model runs."""
    with Client(stack.address, api_key=stack.key) as client:
        wait_until(lambda: _runs(client), "the model does not run", LOADING)
        yield client


def _runs(client: Client) -> bool:
    models = client.list_models()
    assert not any(model.failure for model in models), models
    return any(model.model_name == "smol" and model.state is ModelState.RUNNING for model in models)
