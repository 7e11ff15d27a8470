"""The name of a model that conformance tests install, beside those that all tests share."""

from __future__ import annotations

from headrace import Client
from headrace.types import ModelState

NAME = "second"


def forget(client: Client, name: str) -> None:
    """Stop and release a model, whatever its state, if it is there."""
    states = {model.state for model in client.list_models() if model.model_name == name}
    if not states:
        return
    if states & {ModelState.STARTING, ModelState.RUNNING, ModelState.STOPPING}:
        client.stop_model(name)
    client.release_model(name)
