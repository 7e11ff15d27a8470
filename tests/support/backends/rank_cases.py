"""What ranks are compared on with one device: models of several families, and steps that ask for all that there is."""

from __future__ import annotations

from typing import Any

from headrace_engine.core.row_fields import PromptIds
from headrace_engine.core.runner import SequenceStep
from headrace_engine.sampling_params import SamplingParams

from support.models.tiny_models import make_tiny_family, make_tiny_llama, make_tiny_qwen2

REPORTING = SamplingParams(temperature=0.9, seed=7, logprobs=True, top_logprobs=20)
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (make_tiny_llama, {}),
    "tied, biases": (make_tiny_llama, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "odd sizes": (make_tiny_llama, {"hidden_size": 80, "intermediate_size": 160, "head_dim": 20}),
    "qwen2": (make_tiny_qwen2, {}),
    **{
        name: (make_tiny_family, {"name": name})
        for name in (
            "qwen3",
            "gemma2",
            "gemma3",
            "granite",
            "phi3",
            "phi4 mini",
            "glm4",
            "olmo2",
            "smollm3",
            "command r biases",
            "starcoder2",
        )
    },
    **{name: (make_tiny_family, {"name": name}) for name in ("gpt oss", "minicpm3")},
    **{
        name: (make_tiny_family, {"name": name, "moe_intermediate_size": 64})
        for name in ("deepseek2 biases", "deepseek3")
    },
    "qwen2 moe": (
        make_tiny_family,
        {"name": "qwen2 moe", "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128},
    ),
    "granite moe": (make_tiny_family, {"name": "granite moe"}),
}
REDUCED = (
    "llama",
    "tied, biases",
    "odd sizes",
    "olmo2",
    "command r biases",
    "starcoder2",
    "qwen2 moe",
    "granite moe",
    "deepseek3",
)
"""Models for the mode REDUCED: with biases, with a norm of all heads, without a gate, of experts, of latents."""


def steps_of(ids: list[int]) -> list[list[SequenceStep]]:
    """Return a few steps: a prompt with others beside it, in chunks, then decode steps with all that they report."""
    first, second = (0, 1, 2, 3), (4, 5, 6, 7)
    whole = PromptIds(0, ids[1:30], 5)
    return [
        [
            SequenceStep(ids[:30], 0, first, REPORTING, prompt_logprobs=whole, tensors=True, pooled=3),
            SequenceStep(ids[30:41], 0, second),
        ],
        [SequenceStep(ids[41:43], 11, second, REPORTING), SequenceStep(ids[43:44], 30, first, REPORTING)],
        [SequenceStep(ids[44:45], 31, first, REPORTING, tensors=True), SequenceStep(ids[45:46], 13, second, REPORTING)],
    ]
