"""Routers and corrections of experts in models of 16 bits: float32, as small differences choose other experts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headrace_engine.backends.torch.experts import route
from headrace_engine.backends.torch.linear import linear
from headrace_engine.config import ComputeDtype
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.weights import load_weights
from safetensors.torch import load_file, save_file
from support.backends.torch_sequences import Lanes, load, random_ids
from support.models.tiny_models import make_tiny_family
from unit.models.test_families import read


@pytest.fixture
def glm(tmp_path: Path) -> Path:
    """Corrections around 8, where bfloat16 tells apart steps of 1/16 alone."""
    path = make_tiny_family(tmp_path, "glm4 moe")
    tensors = load_file(path / "model.safetensors")
    tensors = {name: 8 + each / 9 if name.endswith("correction_bias") else each for name, each in tensors.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_experts_are_those_of_float32(glm: Path) -> None:
    files = open_model(str(glm))
    half, whole = (
        load_weights(files, dtype, torch.device("cpu"), lambda *_: None) for dtype in (torch.bfloat16, torch.float32)
    )
    assert half["layers.1.q"].dtype is torch.bfloat16
    x = torch.randn(200, files.spec.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    chosen = []
    for weights, rows in ((half, x), (whole, x.float())):
        scores = linear(rows, weights["layers.1.router"])
        assert files.spec.experts is not None
        chosen.append(route(scores, files.spec.experts, weights["layers.1.router_correction"])[0])
    assert torch.equal(*chosen)
    rounded = route(scores, files.spec.experts, whole["layers.1.router_correction"].bfloat16())[0]
    assert not torch.equal(rounded, chosen[1])


def test_a_model_of_bfloat16_computes(glm: Path) -> None:
    lanes = Lanes(load(glm, dtype=ComputeDtype.BFLOAT16))
    lane = lanes.add(random_ids(9, seed=0))
    lanes.greedy([lane], 3)
    assert torch.isfinite(torch.stack(lane.scores)).all()


def test_a_null_share_of_a_head_that_rotates_means_all() -> None:
    routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    minimax = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "rotary_dim": 8}
    assert read("Glm4MoeForCausalLM", **routed).rotary_dim == 8
    assert read("Glm4MoeForCausalLM", partial_rotary_factor=None, **routed).rotary_dim == 16
    assert read("MiniMaxM2ForCausalLM", **minimax).rotary_dim == 8
    assert read("MiniMaxM2ForCausalLM", partial_rotary_factor=None, **minimax).rotary_dim == 16


def test_phimoe_takes_long_factors_beyond_the_original_length() -> None:
    rope = {
        "type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "short_mscale": 1.2,
        "long_mscale": 1.2,
    }
    more = {"original_max_position_embeddings": 1024, "num_local_experts": 4, "num_experts_per_tok": 2}
    (found,) = read("PhiMoEForCausalLM", rope_scaling=rope, **more).ropes
    assert (found.frequency_factors, found.long_factors) == ((1.0,) * 8, (2.0,) * 8)
    assert (found.original_max_length, found.attention_factor) == (1024, 1.2)
