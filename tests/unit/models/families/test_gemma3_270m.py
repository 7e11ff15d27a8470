"""The published Gemma 3 270M, from its GGUF file, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headrace_engine.config import ComputeDtype
from headrace_engine.models.vocabulary.gguf import build_tokenizer
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lanes, load
from support.models.gemma3 import fetch_gemma3

TEXT = "The capital of France is Paris. Water boils at 100 degrees Celsius. "


@pytest.mark.soak
def test_the_real_model_computes_as_in_transformers(tmp_path: Path) -> None:
    """Beyond a window of 512 tokens, in float32 of both backends, and in the storage that the cpu backend chooses."""
    from transformers import AutoModelForCausalLM

    path = fetch_gemma3(tmp_path)
    ids = build_tokenizer(path).tokenizer.encode(TEXT * 40).ids[:600]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1]
    lanes = Lanes(load(path, max_length=1024))
    torch.testing.assert_close(last_logits(lanes, ids), expected, rtol=0, atol=1e-3)
    for dtype, most in ((ComputeDtype.FLOAT32, 1e-3), (ComputeDtype.AUTO, 0.5)):
        with cpu_model(path, max_length=1024, dtype=dtype) as loaded:
            found = last_logits(CpuLanes(loaded), ids)
        torch.testing.assert_close(found, expected, rtol=0, atol=most)
        assert found.argmax() == expected.argmax()


def last_logits(lanes: Lanes, ids: list[int]) -> torch.Tensor:
    """Logits after a prompt that is computed in two chunks."""
    lane = lanes.add(ids)
    lanes.step((lane, 512))
    lanes.step((lane, len(ids) - 512))
    return lane.scores[0]
