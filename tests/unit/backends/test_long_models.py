"""Models that were made for more positions than any memory holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.backends.cpu import make_runner as make_cpu
from headrace_engine.backends.torch import make_runner as make_torch
from support.backends.runners import plan_for, silent
from support.models.tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose tables for all positions would take 128 GiB."""
    return make_tiny_llama(tmp_path_factory.mktemp("endless") / "m", max_position_embeddings=2**31 - 1)


@pytest.mark.parametrize("make", [make_cpu, make_torch])
def test_f5_a_core_makes_tables_of_no_more_positions_than_fit(endless: Path, make) -> None:
    runner = make(plan_for(endless, num_blocks=64, max_batch=2))
    runner.load(silent)
    try:
        sizes = runner.size()
    finally:
        runner.close()
    assert sizes.max_length == 64 * 16
    assert sizes.weight_bytes < 2**22
