"""Tables of the rotary embedding against transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from headrace_engine.config import RopeScalingType
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.rope import tables
from headrace_engine.models.rope.reading import rope_from_config
from headrace_engine.models.rope.tables import inverse_frequencies, rotary_tables
from headrace_engine.models.spec import RopeSpec

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
    torch.testing.assert_close(torch.from_numpy(inverse_frequencies(SPECS[name])), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SPECS)
def test_bc115_cosines_and_sines_equal_transformers(name):
    """At positions 0, 1, original - 1, original and 4 times the original length; angles differ in their last place."""
    original = SPECS[name].original_max_length or 2048
    positions = torch.tensor([0, 1, original - 1, original, 4 * original])
    x = torch.ones(len(positions), 1, SPECS[name].dim)
    cos, sin = reference(SPECS[name], 4 * original)(x, positions.unsqueeze(0))
    made, half = rotary_tables(SPECS[name], 4 * original + 1), SPECS[name].dim // 2
    for expected, ours in ((cos, made.cos), (sin, made.sin)):
        torch.testing.assert_close(torch.from_numpy(ours)[positions], expected[0, :, :half], rtol=0, atol=2e-5)


def test_frequency_factors_divide_and_replace_scaling():
    factors = tuple(1.0 + place for place in range(32))
    found = inverse_frequencies(replace(LLAMA3, frequency_factors=factors))
    expected = inverse_frequencies(replace(PLAIN, theta=LLAMA3.theta)) / np.array(factors, np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-7)


def test_tables_hold_cosines_and_sines_of_every_position():
    made = rotary_tables(RopeSpec(1e4, 64), 3000)
    assert made.cos.shape == made.sin.shape == (3000, 32)
    assert made.nbytes == 2 * 3000 * 32 * 4
    angles = np.outer(np.arange(3000, dtype=np.float64), 1e4 ** (-np.arange(0, 64, 2) / 64))
    np.testing.assert_allclose(made.cos, np.cos(angles), atol=2e-4)
    np.testing.assert_allclose(made.sin, np.sin(angles), atol=2e-4)
    assert (made.cos[0] == 1).all()


def test_f5_tables_are_made_piece_by_piece_to_the_same_bits(monkeypatch):
    whole = rotary_tables(RopeSpec(1e4, 64), 3000)
    monkeypatch.setattr(tables, "_AT_ONCE", 128)
    pieces = rotary_tables(RopeSpec(1e4, 64), 3000)
    assert (pieces.cos == whole.cos).all()
    assert (pieces.sin == whole.sin).all()


LISTS = {"short_factor": [1 + place / 9 for place in range(32)], "long_factor": [3.0 + place for place in range(32)]}
PARTIAL = {name: values[:24] for name, values in LISTS.items()}
CONFIGS = {
    "partial": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.75},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn rotations": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn scales": {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.1},
    "yarn given": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3, "partial_rotary_factor": 0.5},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 512, **LISTS},
    "longrope partial": {"rope_type": "longrope", "factor": 8.0, "partial_rotary_factor": 0.75, **PARTIAL},
}


@pytest.mark.parametrize("length", [128, 4096, 16_384])
@pytest.mark.parametrize("name", CONFIGS)
def test_scalings_of_configs_equal_transformers(name, length):
    """Up to the original length, at the model's, and beyond it."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {"rope_theta": 50_000.0, **CONFIGS[name]}
    config = LlamaConfig(head_dim=64, max_position_embeddings=4096, rope_parameters=dict(given))
    expected, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, "cpu", seq_len=length)
    fields = ConfigFields({"rope_parameters": given, "max_position_embeddings": 4096}, "config.json")
    rope = replace(rope_from_config(fields, 64, 4096, rotating=1.0), length=length)
    assert rope.attention_factor == pytest.approx(factor)
    np.testing.assert_allclose(inverse_frequencies(rope), expected.numpy(), rtol=1e-6)
    made = rotary_tables(rope, 8)
    np.testing.assert_allclose(made.cos[5], factor * np.cos(5 * expected.numpy()), atol=1e-5)
