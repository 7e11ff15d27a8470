"""Rotary embedding against transformers: inverse frequencies, tables, and logits far beyond the original length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from headrace_engine.backends.torch.rope import RotaryTable, inverse_frequencies
from headrace_engine.config import RopeScaling, RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import RopeSpec
from support.backends.torch_sequences import Lanes, load, random_ids, reference_logits
from support.models.tiny_models import make_tiny_llama

CPU = torch.device("cpu")
ORIGINAL = 256
PLAIN = RopeSpec(theta=10_000.0, dim=64)
LINEAR = replace(PLAIN, scaling=RopeScalingType.LINEAR, factor=4.0)
LLAMA3 = replace(
    PLAIN,
    theta=500_000.0,
    scaling=RopeScalingType.LLAMA3,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_length=ORIGINAL,
)
SPECS = {"plain": PLAIN, "linear": LINEAR, "llama3": LLAMA3, "llama3 8192": replace(LLAMA3, original_max_length=8192)}


def parameters(rope):
    """The same embedding as transformers spells it."""
    names = {RopeScalingType.MODEL: "default", RopeScalingType.LINEAR: "linear", RopeScalingType.LLAMA3: "llama3"}
    given = {"rope_type": names[rope.scaling], "rope_theta": rope.theta}
    if rope.scaling is not RopeScalingType.MODEL:
        given["factor"] = rope.factor
    if rope.scaling is RopeScalingType.LLAMA3:
        given |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
        given["original_max_position_embeddings"] = rope.original_max_length
    return given


def reference(rope, length):
    """Transformers' own module for a model of this length."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * rope.dim,
        num_attention_heads=4,
        max_position_embeddings=length,
        rope_parameters=parameters(rope),
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("name", SPECS)
def test_bc115_inverse_frequencies_equal_transformers(name):
    expected = reference(SPECS[name], 4096).inv_freq
    torch.testing.assert_close(inverse_frequencies(SPECS[name]), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SPECS)
def test_bc115_cosines_and_sines_equal_transformers(name):
    """At positions 0, 1, original - 1, original and 4 times the original length."""
    original = SPECS[name].original_max_length or 2048
    positions = torch.tensor([0, 1, original - 1, original, 4 * original])
    x = torch.ones(len(positions), 1, SPECS[name].dim)
    cos, sin = reference(SPECS[name], 4 * original)(x, positions.unsqueeze(0))
    turned = RotaryTable(SPECS[name], 4 * original + 1, CPU).rotate(x, positions)
    half = SPECS[name].dim // 2
    expected = torch.cat((cos[0, :, :half] - sin[0, :, :half], cos[0, :, :half] + sin[0, :, :half]), -1)
    torch.testing.assert_close(turned.squeeze(1), expected, rtol=0, atol=1e-6)


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


def test_frequency_factors_divide_and_replace_scaling():
    factors = tuple(1.0 + place for place in range(32))
    found = inverse_frequencies(replace(LLAMA3, frequency_factors=factors))
    expected = inverse_frequencies(replace(PLAIN, theta=LLAMA3.theta)) / torch.tensor(factors)
    assert torch.equal(found, expected)


def test_entries_beyond_the_rotating_ones_stay():
    x = torch.randn(3, 2, 80, generator=torch.Generator().manual_seed(0))
    turned = RotaryTable(PLAIN, 8, CPU).rotate(x, torch.tensor([5, 6, 7]))
    assert torch.equal(turned[..., 64:], x[..., 64:])
    assert not torch.equal(turned[..., :64], x[..., :64])


@pytest.mark.parametrize("scaling", [RopeScalingType.DYNAMIC, RopeScalingType.YARN])
def test_other_scalings_are_refused_by_name(scaling):
    with pytest.raises(InvalidArgument, match=f"= {scaling} is not supported") as failure:
        inverse_frequencies(replace(PLAIN, scaling=scaling))
    assert failure.value.reason == "NOT_SUPPORTED"
    assert failure.value.violations[0].field == "config.rope_scaling.type"
