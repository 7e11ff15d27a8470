"""Counts how often matrices are assembled, and makes a small file with large ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace_engine.models import assembled
from headrace_engine.models.files import StoredTensor

from support.models.tiny_models import make_tiny_family

_WIDE = {
    "hidden_size": 512, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 512,
    "num_key_value_heads": 512, "q_lora_rank": 1, "kv_lora_rank": 2, "qk_rope_head_dim": 254, "qk_nope_head_dim": 2,
    "v_head_dim": 1,
}  # fmt: skip


def count_assemblies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each tensor has been assembled since, by its name."""
    found: Counter[str] = Counter()
    assemble = assembled.assemble

    def counted(stored: StoredTensor, read: Callable[[StoredTensor], memoryview]) -> memoryview:
        found[stored.name] += 1
        return assemble(stored, read)

    monkeypatch.setattr(assembled, "assemble", counted)
    return found


def make_wide_latents(path: Path) -> Path:
    """Write a model of a few MiB, whose matrices for 512 heads of 256 entries have 200 MiB or more once assembled."""
    return make_tiny_family(path, "minicpm3", **_WIDE)
