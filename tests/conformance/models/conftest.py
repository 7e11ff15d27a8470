"""A model that a test may do anything with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace import Client
from support.contract.places import Place
from support.contract.second_model import NAME, forget


@pytest.fixture
def second(client: Client, place: Place) -> Iterator[str]:
    """An installed model that the test may do anything with."""
    client.install_model(NAME, path=str(place.folder), max_length=128, max_batch=2, **place.settings)
    yield NAME
    forget(client, NAME)
