"""A tiny model's tokenizer, and a walker that uses it."""

from __future__ import annotations

import pytest
from headrace_engine.guided import guide as guide_module
from headrace_engine.guided.time_limit import TimeLimit
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.models.guided_walks import IM_END, Walker
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import VOCAB_SIZE


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give texts all the time that the machine needs: the clock of their guides stands still."""
    monkeypatch.setattr(guide_module, "TimeLimit", lambda **limits: TimeLimit(lambda: 0.0, **limits))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    """The tokenizer of a tiny model."""
    return load_tokenizer(open_model(str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))))


@pytest.fixture(scope="module")
def walker(bundle: TokenizerBundle) -> Walker:
    """Generates random texts of its ids."""
    return Walker(bundle, VOCAB_SIZE, (IM_END,))
