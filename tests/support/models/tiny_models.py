"""Tiny random models in the layouts that users have: Hugging Face directories and GGUF files.

Weights have a wide distribution, so that the two most likely ids are rarely close.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from support.models.json_files import write_json
from support.models.tiny_tokenizer import ENDOFTEXT, IM_END, IM_START, VOCAB_SIZE, make_tiny_tokenizer

GENERATION_CONFIG: Mapping[str, Any] = {"bos_token_id": IM_START, "eos_token_id": [IM_END, ENDOFTEXT]}


def make_tiny_llama(path: Path | str, *, shards: int = 1, seed: int = 0, **overrides: Any) -> Path:
    """Write a LlamaForCausalLM of 2 layers to directory `path`; overrides go to LlamaConfig."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _make(Path(path), LlamaForCausalLM, LlamaConfig(**tiny_sizes(overrides)), shards, seed)


def make_idle_layers(path: Path | str, source: Path, layers: int) -> Path:
    """Write a Llama that computes what the tiny one at `source` does, but slowly: its last layers add nothing."""
    import torch
    from transformers import AutoModelForCausalLM

    original = AutoModelForCausalLM.from_pretrained(source)
    known, length = original.state_dict(), original.config.max_position_embeddings
    make_tiny_llama(path, num_hidden_layers=layers, max_position_embeddings=length)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(known.get(name, torch.zeros_like(parameter)))
    model.save_pretrained(path)
    return Path(path)


def make_tiny_mistral(path: Path | str, *, shards: int = 1, seed: int = 0, **overrides: Any) -> Path:
    """Write a MistralForCausalLM; sliding_window is None unless overridden."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(**tiny_sizes({"sliding_window": None, **overrides}))
    return _make(Path(path), MistralForCausalLM, config, shards, seed)


def make_tiny_qwen2(path: Path | str, *, shards: int = 1, seed: int = 0, **overrides: Any) -> Path:
    """Write a Qwen2ForCausalLM, with biases on queries, keys and values."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _make(Path(path), Qwen2ForCausalLM, Qwen2Config(**tiny_sizes(overrides)), shards, seed)


def make_tiny_family(path: Path | str, name: str, *, shards: int = 1, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of one of FAMILIES; overrides go to its config."""
    import transformers

    prefix, settings = FAMILIES[name]
    config_class = getattr(transformers, f"{prefix}TextConfig", None) or getattr(transformers, f"{prefix}Config")
    config = config_class(**tiny_sizes({"pad_token_id": ENDOFTEXT, **settings, **overrides}))
    return _make(Path(path), getattr(transformers, f"{prefix}ForCausalLM"), config, shards, seed)


def make_tiny_gguf(path: Path | str, source: Path, quant: str = "F32") -> Path:
    """Write the Hugging Face directory `source` as GGUF file `path`, with matrices stored as `quant` where possible."""
    from support.models.tiny_gguf import write_gguf

    return write_gguf(Path(path), source, quant)


def tiny_sizes(overrides: Mapping[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
    }
    return sizes | dict(overrides)


def _make(path: Path, model_class: Any, config: Any, shards: int, seed: int) -> Path:
    import torch

    path.mkdir(parents=True, exist_ok=True)
    with torch.device("cpu"):
        model = model_class(config).eval()
    draw(model, seed)
    size = sum(each.numel() * each.element_size() for each in model.state_dict().values())
    model.save_pretrained(path, max_shard_size=size // shards + 1)
    write_json(path / "generation_config.json", GENERATION_CONFIG)
    return make_tiny_tokenizer(path)


def draw(model: Any, seed: int) -> None:
    """Fill in random weights: matrices with a gain of 1.5, norms around 1, biases large enough to matter if omitted."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    centre = 0 if model.config.model_type.startswith("gemma") else 1  # Gemma's norms multiply by 1 + weight.
    corrections = {name: each for name, each in model.named_buffers() if name.endswith("correction_bias")}
    with torch.no_grad():
        for name, parameter in sorted([*model.named_parameters(), *corrections.items()]):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.copy_(0.5 * noise if name.endswith("bias") else centre + 0.2 * noise)
            elif model.config.model_type == "gpt_oss" and name.endswith("gate_up_proj"):
                parameter.copy_(noise * 6 / parameter.shape[-2] ** 0.5)  # Gates are limited to 7.
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)


_SLIDING, _FULL = "sliding_attention", "full_attention"
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
_LONG = {"short_factor": [1.0 + place / 9 for place in range(6)], "long_factor": [3.0 + place for place in range(6)]}
_ROUTED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 40,
    "routed_scaling_factor": 1.7, "num_hidden_layers": 3,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12,
    "v_head_dim": 16,
}  # fmt: skip
_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_MSCALE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 512, "short_mscale": 1.2,
    "long_mscale": 1.2, "short_factor": [1.0 + place / 9 for place in range(8)], "long_factor": [4.0] * 8,
}  # fmt: skip
_QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}
_MULTIPLIERS = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 6.0,
}  # fmt: skip
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3 biases": ("Qwen3", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
    "llama yarn": ("Llama", {"rope_parameters": _YARN}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "mistral window": ("Mistral", {"sliding_window": 20}),
    "ministral": (
        "Ministral",
        {"sliding_window": 9, "layer_types": [_SLIDING, _FULL], "head_dim": 16},
    ),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 24,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
        },
    ),
    "gemma": ("Gemma", {"head_dim": 24, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 9,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 9,
            "rope_parameters": {
                _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                _FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
            "tie_word_embeddings": True,
        },
    ),
    "granite": ("Granite", _MULTIPLIERS),
    "granite4": (
        "GraniteMoeHybrid",
        {
            **_MULTIPLIERS,
            "layer_types": ["attention"] * 2,
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "rope",
        },
    ),
    "qwen2 moe": (
        "Qwen2Moe",
        {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 80, **_EXPERTS},
    ),
    "qwen3 moe": ("Qwen3Moe", {"head_dim": 24, "moe_intermediate_size": 40, "norm_topk_prob": True, **_EXPERTS}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": 20}),
    "olmoe": ("Olmoe", {**_EXPERTS}),
    "glm4 moe": (
        "Glm4Moe",
        {**_ROUTED, "head_dim": 24, "use_qk_norm": True, "attention_bias": True, "n_group": 2, "topk_group": 1},
    ),
    "glm4 moe plain": ("Glm4Moe", {**_ROUTED, "first_k_dense_replace": 0, "norm_topk_prob": False}),
    "dots": (
        "Dots1",
        {**_ROUTED, "norm_topk_prob": True, "sliding_window": None, "n_group": 2, "topk_group": 1},
    ),
    "deepseek2": (
        "DeepseekV2",
        {
            **_ROUTED,
            **_LATENT,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**_YARN, "mscale": 0.8, "mscale_all_dim": 0.8},
        },
    ),
    "deepseek2 biases": (
        "DeepseekV2",
        {
            **_ROUTED,
            **_LATENT,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek3": ("DeepseekV3", {**_ROUTED, **_LATENT, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}),
    "glm4 moe lite": (
        "Glm4MoeLite",
        {
            **_ROUTED,
            **_LATENT,
            "v_head_dim": 32,
            "n_group": 4,
            "topk_group": 2,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "minicpm3": (
        "MiniCPM3",
        {**_LATENT, "v_head_dim": None, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    ),
    "ernie moe": (
        "Ernie4_5_Moe",
        {
            "head_dim": 24,
            "moe_intermediate_size": 40,
            "moe_num_experts": 8,
            "moe_k": 3,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
        },
    ),
    "ernie moe biases": (
        "Ernie4_5_Moe",
        {
            "moe_intermediate_size": 40,
            "moe_num_experts": 8,
            "moe_k": 3,
            "use_bias": True,
        },
    ),
    "minimax m2": (
        "MiniMaxM2",
        {"head_dim": 24, "num_local_experts": 8, "num_experts_per_tok": 3, "rope_parameters": _HALF},
    ),
    "phimoe": ("Phimoe", {"num_local_experts": 5, "router_jitter_noise": 0.4}),
    "phimoe biases": (
        "Phimoe",
        {
            "num_local_experts": 6,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 20,
            "rope_parameters": _MSCALE,
        },
    ),
    "granite moe": ("GraniteMoe", {**_MULTIPLIERS, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "granite moe shared": (
        "GraniteMoeShared",
        {**_MULTIPLIERS, "num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 40},
    ),
    "gpt oss": (
        "GptOss",
        {
            "head_dim": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 3,
            "sliding_window": 9,
            "rope_parameters": {**_YARN, "truncate": False, "factor": 8.0},
        },
    ),
    "command r": ("Cohere", {"tie_word_embeddings": True}),
    "command r biases": ("Cohere", {"attention_bias": True, "logit_scale": 0.5, "tie_word_embeddings": True}),
    "command r7b": ("Cohere2", {"num_hidden_layers": 5, "sliding_window": 9, "tie_word_embeddings": True}),
    "stablelm": ("StableLm", {"rope_parameters": _QUARTER}),
    "stablelm parallel": ("StableLm", {"use_qkv_bias": True, "use_parallel_residual": True}),
    "phi2": ("Phi", {}),
    "neox": ("GPTNeoX", {"rope_parameters": _QUARTER}),
    "neox in sequence": ("GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "falcon": ("Falcon", {"tie_word_embeddings": True}),
    "falcon in sequence": ("Falcon", {"parallel_attn": False, "multi_query": False, "bias": True}),
    "falcon2": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    "falcon 40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "starcoder2": ("Starcoder2", {"tie_word_embeddings": True}),
    "starcoder2 window": ("Starcoder2", {"use_bias": False, "sliding_window": 9}),
    "seed oss": ("SeedOss", {"head_dim": 24}),
    "seed oss biases": ("SeedOss", {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "ernie": ("Ernie4_5", {"head_dim": 24, "tie_word_embeddings": True}),
    "ernie biases": ("Ernie4_5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": True}),
    "cwm": ("Cwm", {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 9}),
    "exaone4": ("Exaone4", {"num_hidden_layers": 5, "sliding_window": 9}),
    "exaone4 whole": ("Exaone4", {"sliding_window": None, "layer_types": [_FULL] * 2}),
    "phi3": ("Phi3", {"sliding_window": 20}),
    "phi4 mini": (
        "Phi3",
        {
            "original_max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, **_LONG},
        },
    ),
    "glm": ("Glm", {"head_dim": 16}),
    "glm4": ("Glm4", {"head_dim": 24, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "rope_parameters": {_SLIDING: {"rope_type": "default", "rope_theta": 1e4}, _FULL: _YARN},
        },
    ),
}
"""What families have of their own: the prefix of transformers' classes, and settings by which it matters."""

DECODER_VARIANTS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (make_tiny_llama, {}),
    "llama tied": (make_tiny_llama, {"tie_word_embeddings": True}),
    "llama biases": (make_tiny_llama, {"attention_bias": True, "mlp_bias": True}),
    "llama no groups": (make_tiny_llama, {"num_key_value_heads": 4}),
    "llama one group": (make_tiny_llama, {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 1}),
    "llama linear rope": (
        make_tiny_llama,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "qwen2": (make_tiny_qwen2, {}),
    "qwen2 tied": (make_tiny_qwen2, {"tie_word_embeddings": True}),
    "mistral": (make_tiny_mistral, {}),
    "mistral window": (make_tiny_mistral, {"sliding_window": 20}),
    "qwen2 window in one layer": (
        make_tiny_qwen2,
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "layer_types": None},
    ),
    "qwen2 moe layers": (
        partial(make_tiny_family, name="qwen2 moe"),
        {
            "num_hidden_layers": 5,
            "use_sliding_window": True,
            "sliding_window": 9,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
        },
    ),
    "dots windows": (
        partial(make_tiny_family, name="dots"),
        {"sliding_window": 9, "max_window_layers": 1, "attention_bias": True},
    ),
    "qwen3 moe layers": (
        partial(make_tiny_family, name="qwen3 moe"),
        {"num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": False, "num_experts_per_tok": 8},
    ),
    "qwen3 window in one layer": (
        partial(make_tiny_family, name="qwen3"),
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "layer_types": None},
    ),
}
"""Models that every backend must compute as transformers does: the function that writes each, and its settings."""
