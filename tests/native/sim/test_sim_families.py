"""Every family on the simulated device beside the cpu backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from native.sim_runs import SHAPE, compare_with_cpu, plan_for
from support.models.tiny_models import FAMILIES, make_tiny_family

pytestmark = pytest.mark.usefixtures("simulator")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_scores_are_those_of_the_cpu_backend(name: str, tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path, name, vocab_size=256, **SHAPE)
    compare_with_cpu(plan_for(path), seeds=1, tokens=6)
