"""Configs of published models: what is computed, and the one line with which the others are refused."""

from __future__ import annotations

import pytest
from support.models.real_configs import CONFIGS, PAGE, outcome, page


def test_the_page_says_what_becomes_of_each() -> None:
    """`make model-configs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_refusal_is_one_line_with_what_and_its_value(name: str) -> None:
    message = outcome(CONFIGS[name])
    assert "\n" not in message
    if message:
        assert message.startswith("config.json: ")
        assert message.endswith(("is not supported", "must be a list of one name")) or " is not supported: " in message


@pytest.mark.parametrize(
    "name", ["llama3_1", "llama3_1_405b", "mistral_7b_instruct", "qwen2.5_7b", "qwen3_8b_fp8", "gemma_2_9b", "phi3"]
)
def test_models_that_people_run_are_computed(name: str) -> None:
    assert outcome(CONFIGS[name]) == ""


def test_attention_to_later_positions_is_refused() -> None:
    """A model for embeddings, whose architecture is that of one that generates."""
    assert outcome(CONFIGS["gte_qwen2_7b"]).startswith("config.json: is_causal = False is not supported")
