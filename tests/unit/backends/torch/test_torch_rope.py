"""Rotary embedding of the torch backend against transformers, far beyond the original length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from headrace_engine.backends.torch.rope import RotaryTable
from headrace_engine.config import RopeScaling, RopeScalingType
from headrace_engine.models.rope.tables import rotary_tables
from support.backends.torch_sequences import Lanes, load, random_ids, reference_logits
from support.models.tiny_models import make_tiny_family, make_tiny_llama
from unit.models.rope.test_rope_tables import ORIGINAL, PLAIN, SPECS, parameters

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["linear", "llama3"])
def test_bc115_logits_of_1500_tokens_equal_transformers(name, tmp_path):
    path = make_tiny_llama(tmp_path, max_position_embeddings=2048, rope_parameters=parameters(SPECS[name]))
    ids = random_ids(1500, seed=1)
    lanes = Lanes(load(path))
    lane = lanes.add(ids)
    lanes.step((lane, 1000))
    lanes.step((lane, 500))
    torch.testing.assert_close(lane.scores[0], reference_logits(path, ids)[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "llama3"])
def test_scaling_set_by_the_caller_equals_the_same_in_the_files(name, tmp_path):
    rope = SPECS[name]
    sizes = {"max_position_embeddings": ORIGINAL, "seed": 3}
    plain = make_tiny_llama(tmp_path / "plain", rope_parameters=parameters(replace(PLAIN, theta=rope.theta)), **sizes)
    scaled = make_tiny_llama(tmp_path / "scaled", rope_parameters=parameters(rope), **sizes)
    asked = RopeScaling(type=rope.scaling, factor=rope.factor)
    ids = random_ids(2 * ORIGINAL, seed=2)
    lanes = Lanes(load(plain, rope_scaling=asked, max_length=2 * ORIGINAL))
    lane = lanes.add(ids)
    lanes.step((lane, len(ids)))
    torch.testing.assert_close(lane.scores[0], reference_logits(scaled, ids)[-1], rtol=0, atol=1e-4)


def test_entries_beyond_the_rotating_ones_stay():
    x = torch.randn(3, 2, 80, generator=torch.Generator().manual_seed(0))
    turned = RotaryTable(rotary_tables(PLAIN, 8), CPU).rotate(x, torch.tensor([5, 6, 7]))
    assert torch.equal(turned[..., 64:], x[..., 64:])
    assert not torch.equal(turned[..., :64], x[..., :64])


@pytest.mark.parametrize("longest", [64, 512])
def test_longrope_takes_factors_by_the_length_of_the_install(longest, tmp_path):
    """Up to the original length those for short sequences, and beyond it those for long ones, as transformers does."""
    path = make_tiny_family(tmp_path, "phi4 mini", original_max_position_embeddings=64)
    ids = random_ids(longest - 1 if longest == 64 else 100, seed=4)
    lanes = Lanes(load(path, max_length=longest))
    lane = lanes.add(ids)
    lanes.step((lane, len(ids)))
    torch.testing.assert_close(lane.scores[0], reference_logits(path, ids)[-1], rtol=0, atol=1e-4)


def test_dynamic_scaling_takes_the_length_of_the_install(tmp_path):
    path = make_tiny_llama(tmp_path / "plain", max_position_embeddings=64)
    scaling = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    scaled = make_tiny_llama(tmp_path / "scaled", max_position_embeddings=64, rope_parameters=scaling)
    ids = random_ids(120, seed=5)
    asked = RopeScaling(type=RopeScalingType.DYNAMIC, factor=2.0)
    lanes = Lanes(load(path, rope_scaling=asked, max_length=len(ids)))
    lane = lanes.add(ids)
    lanes.step((lane, len(ids)))
    torch.testing.assert_close(lane.scores[0], reference_logits(scaled, ids)[-1], rtol=0, atol=1e-4)
