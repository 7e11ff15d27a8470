"""What families do not compute is refused by field and value."""

from __future__ import annotations

from typing import Any

import pytest
from unit.models.test_families import refusal

_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 8}
_PHIMOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8, "short_mscale": 1.2}
_V2, _V3, _GLM_LITE = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"
_LATENT: dict[str, Any] = {
    **_ROUTED, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12, "v_head_dim": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_LIMITED = {**_LATENT, "topk_method": "group_limited_greedy"}
_GIVEN = ("n_shared_experts", "rope_interleave", "routed_scaling_factor", "first_k_dense_replace")
_MOST = {"rope_type": "yarn", "factor": 3e38}
_LINEAR = {"rope_type": "linear", "factor": 2.0, "mscale_all_dim": 1.0}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ("Gemma3ForCausalLM", {"hidden_activation": "relu2"}, "hidden_activation = 'relu2'"),
    (
        "Gemma2ForCausalLM",
        {"sliding_window": None, "layer_types": ["sliding_attention"] * 4},
        "sliding_window is absent and must be the size of the windows that layer_types lists",
    ),
    ("Qwen2ForCausalLM", {"is_causal": False}, "is_causal = False is not supported"),
    ("Glm4ForCausalLM", {"head_dim": 16, "partial_rotary_factor": 0.2}, "partial_rotary_factor = 0.2"),
    ("Glm4ForCausalLM", {"sliding_window": 128}, "sliding_window = 128"),
    ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling = 0"),
    ("GraniteMoeHybridForCausalLM", {"num_local_experts": 8}, "num_local_experts = 8"),
    ("GraniteMoeHybridForCausalLM", {"layer_types": ["mamba"] * 4}, "layer_types = ['mamba', "),
    ("GraniteMoeForCausalLM", {"num_local_experts": 0}, "num_local_experts = 0 must be an integer from 1 to 4096"),
    ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok = 5 must be"),
    ("GptOssForCausalLM", {}, "rope_scaling is absent and must say"),
    ("GptOssForCausalLM", {**_YARN, "swiglu_limit": 9.0}, "swiglu_limit = 9.0 is not supported; supported is 7"),
    ("GptOssForCausalLM", {**_YARN, "swiglu_alpha": 1.0}, "swiglu_alpha = 1.0 is not supported; supported is 1.702"),
    ("GptOssForCausalLM", {**_YARN, "num_local_experts": 0}, "num_local_experts = 0 must be an integer"),
    ("CwmForCausalLM", {}, "rope_parameters is absent and must say how positions are scaled"),
    ("CwmForCausalLM", {"rope_scaling": {}}, "rope_parameters is absent and must say how positions are scaled"),
    ("CwmForCausalLM", {**_YARN, "attention_bias": True}, "attention_bias = True"),
    ("Exaone4ForCausalLM", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern = 'LLLG' must be an integer"),
    ("Exaone4ForCausalLM", {"sliding_window": 8, "sliding_window_pattern": None}, "sliding_window_pattern is absent"),
    ("Exaone4ForCausalLM", {"mlp_bias": True}, "mlp_bias = True is not supported"),
    ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv = 8.0"),
    ("Glm4MoeForCausalLM", {**_ROUTED, "n_group": 3}, "n_group = 3 does not divide n_routed_experts = 4"),
    ("Glm4MoeForCausalLM", {**_ROUTED, "n_group": 2, "topk_group": 3}, "topk_group = 3 must be an integer from 1 to 2"),
    ("Dots1ForCausalLM", {**_ROUTED, "n_group": 4, "topk_group": 2}, "n_group = 4 makes groups of one of 4 experts;"),
    ("Dots1ForCausalLM", {**_ROUTED, "n_group": 0}, "n_group = 0 must be an integer from 1"),
    (
        "Glm4MoeForCausalLM",
        {**_ROUTED, "first_k_dense_replace": 4},
        "first_k_dense_replace = 4 leaves none of 4 layers",
    ),
    (
        "MiniMaxM2ForCausalLM",
        {"scoring_func": "softmax"},
        "scoring_func = 'softmax' is not supported; supported is sig",
    ),
    ("MiniMaxM2ForCausalLM", {"attn_type_list": [1, 0, 1, 1]}, "attn_type_list = [1, 0, 1, 1] is not supported"),
    ("Ernie4_5_MoeForCausalLM", {**_ERNIE, "moe_norm_min": 1e-3}, "moe_norm_min = 0.001 is not supported; supported"),
    ("Ernie4_5_MoeForCausalLM", {**_ERNIE, "moe_layer_start_index": 4}, "moe_layer_start_index = 4 leaves no layer"),
    ("MiniMaxM2ForCausalLM", {"head_dim": None, "rotary_dim": 16}, "head_dim is absent and must be a number"),
    ("MiniMaxM2ForCausalLM", {"use_qk_norm": False}, "use_qk_norm = False is not supported; supported is true"),
    ("PhiMoEForCausalLM", {**_PHIMOE, "num_experts_per_tok": 3}, "num_experts_per_tok = 3 is not supported"),
    ("PhiMoEForCausalLM", {**_PHIMOE, "rope_scaling": {"type": "linear", "factor": 2.0}}, "type = 'linear' is not"),
    ("PhiMoEForCausalLM", {**_PHIMOE, "rope_scaling": _LONG}, "rope_scaling.long_mscale is absent"),
    ("PhiMoEForCausalLM", {**_PHIMOE, "rope_scaling": {**_LONG, "long_mscale": 1.3}}, "long_mscale = 1.3 must equal"),
    ("PhiMoEForCausalLM", {**_PHIMOE, "router_jitter_noise": 0}, "router_jitter_noise = 0 must be above 0"),
    (_V2, {**_LATENT, "norm_topk_prob": True}, "norm_topk_prob = True is not supported"),
    (_V2, {**_LATENT, "topk_method": "noaux_tc"}, "topk_method = 'noaux_tc' is not supported; supported are greedy"),
    (_V2, {**_LIMITED, "n_group": 4}, "topk_group = 1 allows 1 of 4 experts, fewer than num_experts_per_tok = 2"),
    (_V2, {**_LIMITED, "n_group": None}, "n_group is absent and must be an integer from 1"),
    (_V2, {**_LIMITED, "n_group": 2, "topk_group": None}, "topk_group is absent and must be an integer from 1 to 2"),
    (_V2, {**_LATENT, "scoring_func": "sigmoid"}, "scoring_func = 'sigmoid' is not supported; supported is softmax"),
    (_V2, {**_LATENT, "moe_layer_freq": 2}, "moe_layer_freq = 2 is not supported; supported is 1"),
    (_V3, {**_LATENT, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 3}, "topk_group = 1 allows 2 of 4 experts"),
    (_V3, {**_LATENT, "n_group": ...}, "n_group is absent and does not divide n_routed_experts = 4"),
    (_V3, {**_LATENT, "topk_group": ...}, "topk_group is absent and must be an integer from 1 to 1"),
    (_V3, {**_LATENT, "n_group": None}, "n_group = null is not supported; leave it out for the default"),
    (_V3, {**_LATENT, "scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported; supported is sigmoid"),
    (_V3, {**_LATENT, "topk_method": "greedy"}, "topk_method = 'greedy' is not supported; supported is noaux_tc"),
    (_V3, {**_LATENT, "rope_interleave": False}, "rope_interleave = False is not supported; supported is true"),
    *(
        (_V3, {**_LATENT, name: None}, f"{name} = null is not supported; leave it out for the default")
        for name in _GIVEN
    ),
    (_V2, {**_LATENT, "n_shared_experts": None}, "n_shared_experts = null is not supported"),
    (_GLM_LITE, {**_LATENT, "head_dim": 32}, "head_dim = 32 contradicts qk_rope_head_dim = 12"),
    (_GLM_LITE, {**_LATENT, "norm_topk_prob": None}, "norm_topk_prob = null is not supported"),
    (_V3, {**_LATENT, "first_k_dense_replace": 4}, "first_k_dense_replace = 4 leaves none of 4 layers"),
    (_V3, {**_LATENT, "num_key_value_heads": 2}, "num_key_value_heads = 2 is not supported: 4 heads have keys of"),
    (_V3, {**_LATENT, "v_head_dim": 33}, "v_head_dim = 33 is not supported: it must be at most the size of keys, 32"),
    (_V3, {**_LATENT, "qk_nope_head_dim": 21}, "qk_nope_head_dim = 21 must be even, as qk_rope_head_dim = 12 is"),
    (_V3, {**_LATENT, "qk_rope_head_dim": 11}, "config.json: qk_rope_head_dim = 11 must be even, for rotary"),
    (_V3, {**_LATENT, "qk_rope_head_dim": 258}, "qk_rope_head_dim = 258 must be an integer from 1 to 256"),
    (_V3, {**_LATENT, "qk_nope_head_dim": 1026}, "qk_nope_head_dim = 1026 must be an integer from 1 to 1024"),
    (_V3, {**_LATENT, "q_lora_rank": ...}, "q_lora_rank is absent and must be a number, or null"),
    (_V3, {**_LATENT, "kv_lora_rank": 0}, "kv_lora_rank = 0 must be an integer from 1"),
    (
        _V3,
        {**_LATENT, "rope_scaling": {**_MOST, "mscale_all_dim": 1.1e18}},
        "mscale_all_dim = 1.1e+18 is out of range; a",
    ),
    (_V3, {**_LATENT, "rope_scaling": {**_MOST, "mscale_all_dim": 1e38, "mscale": 1}}, "mscale_all_dim = 1e+38 is out"),
    (
        _V3,
        {**_LATENT, "rope_scaling": {**_MOST, "mscale_all_dim": 1, "mscale": 1e38}},
        "mscale = 1e+38 is out of range",
    ),
    (_V3, {**_LATENT, "rope_scaling": _LINEAR}, "mscale_all_dim = 1.0 is not supported with rope_type = 'linear'"),
    (
        _V3,
        {**_LATENT, "quantization_config": {"quant_method": "fp8"}},
        "quant_method = 'fp8' is not supported: of this architecture unquantized checkpoints are read, which",
    ),
    (_GLM_LITE, {**_LATENT, "mlp_layer_types": ["dense"] * 4}, "mlp_layer_types = ['dense', 'dense', 'dense', 'dense"),
    (_GLM_LITE, {**_LATENT, "mlp_layer_types": ["moe"] * 4}, "mlp_layer_types = ['moe', 'moe', 'moe', 'moe'] must"),
    (_GLM_LITE, {**_LATENT, "first_k_dense_replace": 2}, "first_k_dense_replace = 2 is not supported; supported is 1"),
    ("MiniCPM3ForCausalLM", {**_LATENT, "scale_depth": 0}, "scale_depth = 0 must be above 0"),
    ("Qwen2MoeForCausalLM", {**_MOE, "shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size = 0"),
    ("Qwen3MoeForCausalLM", {**_MOE, "mlp_only_layers": [9]}, "mlp_only_layers = [9] must list layers from 0 to"),
    ("Qwen3MoeForCausalLM", {**_MOE, "decoder_sparse_step": 9}, "decoder_sparse_step = 9 leaves no layer"),
    ("Qwen3MoeForCausalLM", {**_MOE, "norm_topk_prob": 1}, "norm_topk_prob = 1 must be true or false"),
    ("Ministral3ForCausalLM", {}, "rope_parameters is absent"),
    ("MiniCPMForCausalLM", {"num_experts": 8}, "num_experts = 8 is not supported"),
    ("MiniCPMForCausalLM", {"sparse_config": {"topk": 64}}, "sparse_config = {'topk': 64} is not supported"),
    ("MiniCPMForCausalLM", {"use_mup": False}, "use_mup = False is not supported"),
    ("Ernie4_5ForCausalLM", {"compression_ratio": 2.0}, "compression_ratio = 2.0 is not supported"),
    ("MiniCPMForCausalLM", {"scale_depth": 0}, "scale_depth = 0 must be"),
    ("MinistralForCausalLM", {"layer_types": ["chunked_attention"] * 4}, "layer_types = ['chunked_attention', "),
    ("Olmo2ForCausalLM", {"clip_qkv": 8.0}, "clip_qkv = 8.0"),
    ("Phi3ForCausalLM", {"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "rope_scaling.short_factor is"),
    ("Phi3ForCausalLM", {"rope_scaling": {"type": "yarn"}}, "rope_scaling.type = 'yarn' is not supported"),
    ("Phi3ForCausalLM", {"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.rope_type = 'llama3' is not"),
    ("Phi3ForCausalLM", {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
    ("Qwen3ForCausalLM", {"rope_scaling": {"rope_type": "yarn"}, "rope_theta": 1.0}, "rope_theta"),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers = [1, 0]"),
    ("SmolLM3ForCausalLM", {"rope_theta": 1e-300}, "rope_theta = 1e-300 must be at least 1"),
    ("GraniteForCausalLM", {"logits_scaling": 1e-310}, "logits_scaling = 1e-310 must be from 1.17549e-38"),
    ("GraniteForCausalLM", {"embedding_multiplier": 1e300}, "embedding_multiplier = 1e+300 must be from 1.17549e-38"),
    ("Gemma3ForCausalLM", {"rope_local_base_freq": 1e-9}, "rope_local_base_freq = 1e-09 must be at least 1"),
]


@pytest.mark.parametrize(("architecture", "changes", "words"), REFUSED)
def test_what_is_not_computed_is_refused(architecture: str, changes: dict[str, Any], words: str) -> None:
    message = refusal(architecture, **changes)
    assert message.startswith("config.json: ")
    assert words in message
