"""Adapters in GGUF files: what they compute beside PEFT, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from headrace_engine.errors import BadModel
from headrace_engine.models.adapters.opening import open_adapter
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lanes, load, random_ids
from support.models.tiny_adapters import adapter_plan, as_gguf, make_tiny_adapter, peft_greedy, peft_logits
from support.models.tiny_models import make_tiny_family, make_tiny_gguf, make_tiny_llama

ROOM = {"lora_max_num": 1, "lora_max_rank": 8}
PROMPT = random_ids(21, seed=3)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma3"])
@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_it_computes_what_peft_does(family: str, form: str, tmp_path: Path) -> None:
    """For a model of either format: rows of queries and keys are in another order in files of some families."""
    source = make_tiny_llama(tmp_path / "m") if family == "llama" else make_tiny_family(tmp_path / "m", family)
    targets = {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]} if family == "phi3" else {}
    adapter = make_tiny_adapter(tmp_path / "a", source, r=8, lora_alpha=12, **targets)
    file = as_gguf(tmp_path / "a.gguf", adapter, source)
    loaded = load(source if form == "hf" else make_tiny_gguf(tmp_path / "m.gguf", source), **ROOM)
    loaded.adapters.read(adapter_plan(1, file, loaded.spec))()
    lanes = Lanes(loaded)
    lane = lanes.add(PROMPT, new_tokens=6)
    lane.adapter = 1
    lanes.greedy([lane], 6)
    expected = peft_logits(source, adapter, lane.ids[:-1])[len(PROMPT) - 1 :]
    torch.testing.assert_close(torch.stack(lane.scores), expected, rtol=1e-4, atol=1e-4)


def test_the_cpu_backend_samples_the_ids_of_peft(model: Path, tmp_path: Path) -> None:
    adapter = make_tiny_adapter(tmp_path / "a", model)
    file = as_gguf(tmp_path / "a.gguf", adapter, model)
    with cpu_model(model, **ROOM) as loaded:
        loaded.adapters.read(adapter_plan(1, file, loaded.spec))()
        lanes = CpuLanes(loaded)
        lane = lanes.add(PROMPT, new_tokens=8)
        lane.adapter = 1
        lanes.greedy([lane], 8)
    assert lane.ids[len(PROMPT) :] == peft_greedy(model, adapter, PROMPT, 8)


def test_without_an_alpha_the_factors_count_as_they_are(model: Path, tmp_path: Path) -> None:
    spec = load(model).spec
    adapter = make_tiny_adapter(tmp_path / "a", model, r=4, lora_alpha=8)
    scales = []
    for number, alpha in enumerate((8.0, 0.0, None)):
        file = as_gguf(tmp_path / f"{number}.gguf", adapter, model, adapter_lora_alpha=alpha)
        scales.append({each.scale for each in open_adapter(file, spec).factors.values()})
    assert scales == [{2.0}, {1.0}, {1.0}]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"general_type": "model"}, "general.type = 'model' is not supported"),
        ({"general_type": None}, "general.type is absent"),
        ({"adapter_type": "control"}, "adapter.type = 'control' is not supported"),
        ({"general_architecture": "qwen2"}, "general.architecture = 'qwen2' is not that of the model"),
        ({"adapter_lora_alpha": -1.0}, "adapter.lora.alpha = -1.0 must be above 0"),
        ({"adapter_alora_invocation": 3}, "adapter.alora.invocation = 3 is not supported"),
    ],
)
def test_metadata_that_is_not_supported_is_refused(
    metadata: dict[str, Any], text: str, model: Path, tmp_path: Path
) -> None:
    adapter = make_tiny_adapter(tmp_path / "a", model)
    file = as_gguf(tmp_path / "a.gguf", adapter, model, **metadata)
    with pytest.raises(BadModel) as refusal:
        open_adapter(file, load(model).spec)
    assert text in refusal.value.message


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({}, "holds no tensors"),
        ({"blk.0.attn_q.weight.lora_a": (4, 64)}, "blk.0.attn_q has no lora_b"),
        ({"blk.0.attn_q.weight.lora_b": (64, 4)}, "blk.0.attn_q has no lora_a"),
        ({"token_embd.weight.lora_a": (4, 64)}, "changes token_embd, which is no matrix"),
        ({"blk.9.attn_q.weight.lora_a": (4, 64)}, "changes blk.9.attn_q, which is no matrix"),
        ({"blk.0.attn_q.weight": (64, 64)}, "is not a factor of a LoRA adapter"),
        ({"blk.0.attn_q.weight.lora_a": (4, 63), "blk.0.attn_q.weight.lora_b": (64, 4)}, "expected [rank, 64]"),
        ({"blk.0.attn_q.weight.lora_a": (4, 64), "blk.0.attn_q.weight.lora_b": (64, 5)}, "expected [64, 4]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tensors: dict[str, tuple[int, ...]], text: str, model: Path, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadModel) as refusal:
        open_adapter(tmp_path / "a.gguf", load(model).spec)
    assert text in refusal.value.message


def test_a_model_is_no_adapter(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"general\.type is absent"):
        open_adapter(make_tiny_gguf(tmp_path / "m.gguf", model), load(model).spec)
