"""The cpu backend on a text, SmolLM2-135M-Instruct in every format of weights: as likely as its oracle says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accuracy_of_text import MOST_ROWS, Oracle, Passages, compared, dequantized, passages, prefilled_logits, smollm2
from cpu_sequences import cpu_model
from headrace_engine.config import WeightQuant

MOST_CHANGE = 0.005
"""Of the perplexity."""


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
def test_the_perplexity_of_a_text_is_that_of_the_same_weights_in_float32(
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
