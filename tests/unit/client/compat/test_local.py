"""Names of models by their paths, and which addresses are of this process."""

from __future__ import annotations

import pytest
from headrace.compat.local import IN_PROCESS, is_in_process, name_of


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/SmolLM2-135M", "SmolLM2-135M"),
        ("models/SmolLM2-135M/", "SmolLM2-135M"),
        ("owner/model", "model"),
        ("/models/my model (1).gguf", "my_model_1_.gguf"),
        ("x" * 200, "x" * 128),
    ],
)
def test_a_model_is_named_by_the_end_of_its_path(path: str, name: str) -> None:
    assert name_of(path) == name


@pytest.mark.parametrize(
    ("address", "here"), [(None, True), ("", True), (IN_PROCESS, True), ("host:7070", False), ("unix:/x", False)]
)
def test_without_an_address_the_engine_is_in_this_process(address: str | None, here: bool) -> None:
    assert is_in_process(address) is here
