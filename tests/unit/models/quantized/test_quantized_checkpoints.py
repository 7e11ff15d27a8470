"""Checkpoints that other programs quantized: their weights to the last bit, and the ids of transformers with these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.config import ComputeDtype
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.layout import HF_NAMES, file_name
from headrace_engine.models.weights import load_weights
from headrace_engine.native import PackedMatrix
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lanes, load, random_ids, reference
from support.models.quantized_checkpoints import ALL, NUMBERS, SCHEMES, WEIGHTS, awq, gptq, write_quantized
from support.models.tiny_models import make_tiny_family, make_tiny_llama, make_tiny_qwen2

COUNT = 12
PROMPT = random_ids(37, seed=3)


@pytest.mark.parametrize("scheme", ALL)
def test_weights_are_those_of_the_formula(scheme: str, tmp_path: Path) -> None:
    """As numbers, and on cpu as codes, if they are integers."""
    quantized, plain = write_quantized(tmp_path / "made", make_tiny_llama(tmp_path / "source"), *ALL[scheme])
    weights = load_weights(open_model(str(quantized)), torch.float32, torch.device("cpu"), lambda *_: None)
    expected = load_file(plain / WEIGHTS)
    assert {file_name(name, HF_NAMES) for name in weights} == expected.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, expected[file_name(name, HF_NAMES)]), name
    if scheme in NUMBERS:
        return
    with cpu_model(quantized, dtype=ComputeDtype.BFLOAT16) as model:
        coded = {name: packed for name, packed in model.weights.tensors.items() if name.startswith("layers.")}
        for name, packed in ((name, packed) for name, packed in coded.items() if isinstance(packed, PackedMatrix)):
            assert packed.matrix.is_integer, name
            rows = torch.from_numpy(np.stack([packed.row(row) for row in range(packed.matrix.outputs)]))
            assert torch.equal(rows, expected[file_name(name, HF_NAMES)]), name


@pytest.mark.parametrize("scheme", ALL)
def test_ids_are_those_of_transformers(scheme: str, tmp_path: Path) -> None:
    """In float32: on torch, and on cpu with the codes of the file."""
    source = make_tiny_qwen2(tmp_path / "source")
    check(*write_quantized(tmp_path / "made", source, *ALL[scheme]))


@pytest.mark.parametrize("family", ["phi3", "glm4", "olmo2"])
def test_joined_and_interleaved_matrices(family: str, tmp_path: Path) -> None:
    source = make_tiny_family(tmp_path / "source", family)
    check(*write_quantized(tmp_path / "made", source, *SCHEMES["awq"]))


@pytest.mark.parametrize("scheme", ["awq", "gptq asymmetric", "block fp8"])
def test_experts(scheme: str, tmp_path: Path) -> None:
    source = make_tiny_family(tmp_path / "source", "qwen3 moe", moe_intermediate_size=64)
    check(*write_quantized(tmp_path / "made", source, *ALL[scheme]))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 12)),
    group=st.sampled_from([-1, 16, 32, 48, 64, 96, 256]),
    method=st.sampled_from(["awq", "gptq"]),
)
def test_any_sizes_and_groups(sizes: tuple[int, int], group: int, method: str, tmp_path_factory: Any) -> None:
    """Also groups that are multiples of ours, and rows that end within a group."""
    path = tmp_path_factory.mktemp("sizes")
    source = make_tiny_llama(path / "source", hidden_size=32 * sizes[0], head_dim=16, intermediate_size=16 * sizes[1])
    packing = awq(group) if method == "awq" else gptq(4, group, symmetric=False)
    config = {"quant_method": method, "bits": 4, "group_size": group, "sym": False}
    check(*write_quantized(path / "made", source, packing, config))


def check(quantized: Path, plain: Path) -> None:
    """Greedy ids of both backends are those of transformers with the weights as numbers, and logits near its own."""
    prompt = torch.tensor([PROMPT])
    ids = reference(plain).generate(prompt, max_new_tokens=COUNT, do_sample=False, eos_token_id=None)[0].tolist()
    with torch.inference_mode():
        logits = reference(plain)(torch.tensor([ids[:-1]])).logits[0][len(PROMPT) - 1 :]
    with cpu_model(quantized, dtype=ComputeDtype.FLOAT32) as model:
        for lanes in (Lanes(load(quantized)), CpuLanes(model)):
            lane = lanes.add(PROMPT, new_tokens=COUNT)
            lanes.greedy([lane], COUNT)
            assert lane.ids[: len(ids)] == ids
            torch.testing.assert_close(torch.stack(lane.scores)[:COUNT], logits, rtol=0, atol=1e-4)
