"""Families that differ in what the device computes, on the simulated device beside the cpu backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from native.sim_runs import SHAPE, compare_with_cpu, plan_for
from support.models.tiny_models import make_tiny_family

pytestmark = pytest.mark.usefixtures("simulator")


DIFFERENT: dict[str, dict[str, object]] = {
    "qwen3": {},
    "smollm3": {"no_rope_layers": [1, 0], "num_hidden_layers": 2},
    "ministral3": {},
    "gemma2": {},
    "gemma3": {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    "granite": {},
    "glm4": {},
    "olmo2": {},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_scores_are_those_of_the_cpu_backend(name: str, tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path, name, vocab_size=256, **SHAPE, **DIFFERENT[name])
    compare_with_cpu(plan_for(path), seeds=1, tokens=4)
