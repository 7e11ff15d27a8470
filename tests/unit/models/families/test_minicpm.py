"""MiniCPM, which transformers runs by code of the model alone: Granite, whose factors follow from other fields."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.config import ComputeDtype
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lanes, load, random_ids, reference
from support.models.json_files import read_json, write_json
from support.models.tiny_models import make_tiny_family

COUNT = 12
PROMPT = random_ids(37, seed=3)
LAYERS, HEAD, HIDDEN, BASE = 3, 16, 64, 24
_FACTORS = [1.0 + place / 9 for place in range(HEAD // 2)]
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 512,
    "short_factor": _FACTORS, "long_factor": _FACTORS,
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [{}, {"attention_bias": True, "tie_word_embeddings": True}, {"rope_parameters": LONG}],
    ids=["heads of their own", "biases and a tied head", "longrope"],
)
def test_ids_are_those_of_granite(settings: dict[str, Any], tmp_path: Path) -> None:
    """Factors of MiniCPM-2B: 12 for embeddings, 1.4 / √layers for branches, a base / the width for logits."""
    granite = make_tiny_family(
        tmp_path / "granite", "granite", num_hidden_layers=LAYERS, attention_multiplier=HEAD**-0.5,
        residual_multiplier=1.4 / math.sqrt(LAYERS), logits_scaling=HIDDEN / BASE, **settings,
    )  # fmt: skip
    prompt = torch.tensor([PROMPT])
    ids = reference(granite).generate(prompt, max_new_tokens=COUNT, do_sample=False, eos_token_id=None)[0].tolist()
    with torch.inference_mode():
        logits = reference(granite)(torch.tensor([ids[:-1]])).logits[0][len(PROMPT) - 1 :]
    config = read_json(granite / "config.json")
    for name in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"):
        del config[name]
    own = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": BASE, "architectures": ["MiniCPMForCausalLM"]}
    write_json(granite / "config.json", config | own)
    with cpu_model(granite, dtype=ComputeDtype.FLOAT32) as model:
        for lanes in (Lanes(load(granite)), CpuLanes(model)):
            lane = lanes.add(PROMPT, new_tokens=COUNT)
            lanes.greedy([lane], COUNT, chunk=9)
            assert lane.ids[: len(ids)] == ids
            torch.testing.assert_close(torch.stack(lane.scores)[:COUNT], logits, rtol=0, atol=1e-4)
