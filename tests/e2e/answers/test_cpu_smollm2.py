"""The cpu backend on the real model, SmolLM2-135M-Instruct in Q4_1, against the torch backend on the same values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.config import ActivationQuant, ComputeDtype, KvCacheMode
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.ops import Batch, Extent
from headrace_engine.models.tokenizer import load_tokenizer
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lane, load
from support.models.text_accuracy import smollm2

TEXTS = (
    "The capital of France is Paris, and the river that runs through it is called the Seine. Many people visit the city"
    " every year to see the Eiffel Tower and the museums.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\nprint(",
    "Water wheels turn the force of a stream into work. The stream is led to the wheel through a channel with a gate,"
    " so that the miller decides how much water reaches it.",
    "1. Preheat the oven to 180 degrees. 2. Mix the flour, the sugar and the eggs in a large bowl. 3. Pour the mixture"
    " into a tin and bake it for forty minutes.",
    "Once upon a time there was a little girl who lived in a village near the forest. Every morning she went to the"
    " well to fetch water for her grandmother.",
    "The mitochondria are the power houses of the cell: they produce most of the energy that a cell needs to do its"
    " work, in the form of a molecule called ATP.",
)
TOKENS = 32


@pytest.fixture(scope="module")
def path() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def sequences(path: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(open_model(str(path))).tokenizer
    ids = [tokenizer.encode(text, add_special_tokens=False).ids[:TOKENS] for text in TEXTS]
    assert {len(sequence) for sequence in ids} == {TOKENS}
    return ids


@pytest.fixture(scope="module")
def expected(path: Path, sequences: list[list[int]]) -> Any:
    """What the torch backend computes in float32 after every id, [sequences · ids, vocabulary]."""
    model = load(path, num_threads=2, max_length=256)
    blocks = -(-TOKENS // 16)
    extents = [
        Extent(number * TOKENS, TOKENS, 0, range(number * blocks, (number + 1) * blocks))
        for number in range(len(sequences))
    ]
    decoder = model.decoder(model.pool(blocks * len(sequences), 16))
    rows = [token for ids in sequences for token in ids]
    with torch.inference_mode():
        return decoder.forward(Batch(rows, extents, range(len(rows))))


def forced(lanes: CpuLanes, sequences: Sequence[Sequence[int]]) -> Any:
    """The same from the cpu backend, one id a step in one batch."""
    mine: list[Lane] = [lanes.add(ids[:1], new_tokens=len(ids)) for ids in sequences]
    for place in range(1, TOKENS + 1):
        lanes.step(*((lane, 1) for lane in mine))
        for lane, ids in zip(mine, sequences, strict=True):
            lane.ids += ids[place : place + 1]
    return torch.cat([torch.stack(lane.scores) for lane in mine])


@pytest.mark.parametrize(
    ("changes", "same", "smallest", "median"),
    [
        ({}, 0.98, 0.9995, 0.9999),
        ({"dtype": ComputeDtype.FLOAT32}, 0.995, 0.999999, 0.999999),
        ({"kv_cache_mode": KvCacheMode.INT8}, 0.97, 0.99, 0.9995),
        ({"activation_quant": ActivationQuant.INT8}, 0.85, 0.5, 0.98),
    ],
    ids=str,
)
def test_every_token_is_as_likely_as_the_oracle_says(
    path: Path,
    sequences: list[list[int]],
    expected: Any,
    changes: dict[str, Any],
    same: float,
    smallest: float,
    median: float,
) -> None:
    """The share of ids after which the most likely one is the same, and how near the logits are."""
    with cpu_model(path, max_length=256, **changes) as model:
        got = forced(CpuLanes(model), sequences)
    share = (got.argmax(1) == expected.argmax(1)).double().mean().item()
    nearness = torch.nn.functional.cosine_similarity(got.double(), expected.double())
    print(f"most likely id the same: {share:.4f}, cosines: {nearness.min():.6f}, {nearness.median():.6f}")
    assert share >= same
    assert nearness.min() >= smallest
    assert nearness.median() >= median
