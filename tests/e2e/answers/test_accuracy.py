"""The cpu backend on a text, SmolLM2-135M-Instruct in every format of weights: as likely as its oracle says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import KvCacheMode, WeightQuant
from support.backends.cpu_sequences import cpu_model
from support.models.text_accuracy import (
    MOST_ROWS,
    Oracle,
    Passages,
    compared,
    dequantized,
    passages,
    prefilled_logits,
    smollm2,
)
from torch import Tensor

MOST_CHANGE = 0.005
"""Of the perplexity."""

LEAST_SAME = {KvCacheMode.INT8: 0.97, KvCacheMode.UINT4: 0.84}
"""Share of ids after which the most likely one is that of keys and values in bfloat16."""

LONG = 768
"""Ids of a text that is read with codes."""


@pytest.fixture(scope="module")
def path() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def texts(path: Path) -> Passages:
    return passages(path, length=384, most=1)


@pytest.fixture(scope="module")
def oracle(path: Path, texts: Passages) -> Oracle:
    return Oracle(path, texts)


@pytest.mark.parametrize(
    "storage",
    [
        {},
        {"weight_quant": WeightQuant.INT8},
        {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 64},
        pytest.param({"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32}, marks=pytest.mark.soak),
    ],
    ids=["as shipped", "int8", "int4 g64", "int4 g32"],
)
def test_the_perplexity_of_a_text_is_that_of_float32(
    path: Path, texts: Passages, oracle: Oracle, storage: dict[str, Any]
) -> None:
    """Read in chunks as a prompt is."""
    with cpu_model(path, max_length=512, max_batch=MOST_ROWS, **storage) as model:
        expected = oracle.logits(dequantized(model.weights.tensors))
        accuracy = compared(prefilled_logits(model, texts), expected, texts)
    print(f"perplexity {accuracy.perplexity:.3f}, expected {accuracy.expected:.3f}: {accuracy.change:+.3%}")
    assert abs(accuracy.change) <= MOST_CHANGE
    assert accuracy.same >= 0.98
    assert accuracy.cosine >= 0.9995


def test_bc106_quantized_keys_and_values_cost_what_is_documented(path: Path) -> None:
    """On the way of a text, where its end reads hundreds of codes for each id."""
    text = passages(path, length=LONG, most=1)
    chosen = {mode: most_likely(path, text, mode) for mode in KvCacheMode}
    for mode, least in LEAST_SAME.items():
        same = (chosen[mode] == chosen[KvCacheMode.DEFAULT])[-512:].double().mean().item()
        print(f"{mode}: {same:.3f} the same")
        assert same >= least, mode


def most_likely(path: Path, text: Passages, mode: KvCacheMode) -> Tensor:
    """The most likely id after each."""
    with cpu_model(path, max_length=1024, max_batch=MOST_ROWS, kv_cache_mode=mode) as model:
        return prefilled_logits(model, text).argmax(1)
