"""Texts that a pattern may try to match from every place on."""

from __future__ import annotations

import pytest
from headrace_engine.models.vocabulary.splitting import SPLITTINGS, pre_tokenizer

LENGTH = 300_000
"""Characters. What takes time by their square takes some minutes, and the test's limit ends it."""


@pytest.mark.parametrize(
    "text", ["1" * LENGTH + "a", " " * LENGTH + "1", "\t" * LENGTH + "中"], ids=["1", "space", "tab"]
)
@pytest.mark.parametrize("name", list({splitting: name for name, splitting in SPLITTINGS.items()}.values()))
def test_long_runs_are_split_in_linear_time(name: str, text: str) -> None:
    parts = pre_tokenizer(SPLITTINGS[name]).pre_tokenize_str(text)
    assert sum(end - begin for _, (begin, end) in parts) == len(text)
