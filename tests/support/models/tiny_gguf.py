"""Writes a tiny Hugging Face directory as GGUF, in the layout of public converters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import numpy as np

from support.models.json_files import read_json
from support.models.tiny_tokenizer import CHAT_TEMPLATE, ENDOFTEXT, IM_END, IM_START, SPECIAL_TOKENS, tiny_vocabulary

Array = np.ndarray[Any, Any]

SPACE = "\u2581"
_PIECES = (f"{SPACE}the", f"{SPACE}hello", "world", f"{SPACE}is", "ing", f"{SPACE}water", f"{SPACE}{SPACE}", "12")
ARCHITECTURES = {
    "cohere": "command-r",
    "cohere2": "cohere2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone4": "exaone4",
    "falcon": "falcon",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "glm": "chatglm",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
    "llama": "llama",
    "minimax_m2": "minimax-m2",
    "ministral3": "mistral3",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
_INTERLEAVED = ("granite", "granitemoe", "internlm2", "llama", "mistral3", "smollm3")
"""Architectures whose converters permute the rows of queries and keys."""
_SCALES = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
    "use_parallel_residual": "use_parallel_residual",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}
_ROUTED = {
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "moe_num_experts": "expert_count",
    "moe_k": "expert_used_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
}
"""Keys of families whose experts are chosen by corrected scores."""
_QKV = re.compile(r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
"""Keys by their names in configs."""


def write_gguf(
    path: Path,
    source: Path,
    quant: str = "F32",
    *,
    pre: str = "llama-bpe",
    metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, Array] | None = None,
    joint: bool | None = None,
) -> Path:
    """Write the directory `source` as file `path`.

    Args:
        quant: name of the storage type of matrices whose rows divide into its blocks; other tensors are F32.
        pre: name of the tokenizer's splitting.
        metadata: further keys, of type uint32, float32, string or array by value; they replace those of the model,
            and None takes one away.
        extra_tensors: further tensors, as F32.
        joint: whether keys and values of latents are one matrix, as in old files; None: those of DeepSeek-V2 alone.
    """
    config = _as_others(read_json(source / "config.json"))
    config["joint"] = config["model_type"] == "deepseek_v2" if joint is None else joint
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    replaced = dict(metadata or {})
    pairs = {**_model_keys(architecture, config), **_tokenizer_keys(pre, config["vocab_size"]), **replaced}
    for key, value in pairs.items():
        if value is not None:
            add_key(writer, key, value)
    extra = {**_rope_freqs(config), **(extra_tensors or {})}
    for name, data in [*_tensors(source, config, architecture), *extra.items()]:
        _add_tensor(writer, name, data, gguf.GGMLQuantizationType[quant])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_others(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the names that most families have for heads of keys, the size of the MLP and eps."""
    heads = config["num_attention_heads"]
    if config["model_type"] == "gpt_neox":
        return {**config, "num_key_value_heads": heads}
    if config["model_type"] != "falcon":
        return config
    kv_heads = 1 if config["multi_query"] else heads
    return {
        **config,
        "num_key_value_heads": config["num_kv_heads"] if config["new_decoder_architecture"] else kv_heads,
        "intermediate_size": config["ffn_hidden_size"],
        "layer_norm_eps": config["layer_norm_epsilon"],
    }


def sentencepiece_keys(vocab_size: int) -> dict[str, Any]:
    """Return metadata of a SentencePiece vocabulary with byte fallback, which replaces the byte-level one."""
    pieces = dict.fromkeys([SPACE, *ascii_lowercase, "T", ".", ",", "1", "2", "é"])
    pieces |= dict.fromkeys(word[:end] for word in _PIECES for end in range(2, len(word) + 1))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    unused = [f"[UNUSED{index}]" for index in range(len(tokens), vocab_size)]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), *[5] * len(unused)]
    scores = [0.0] * 259 + [-float(index) for index in range(len(pieces) + len(unused))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": None,
        "tokenizer.ggml.add_bos_token": None,
    }


def _rope_freqs(config: Mapping[str, Any]) -> dict[str, Array]:
    """Return the divisors of inverse frequencies, which files have for Llama 3's scaling and longrope."""
    rope = _rope(config)
    if rope.get("rope_type") == "longrope":
        lists = {"short": rope["short_factor"], "long": rope["long_factor"]}
        return {f"rope_factors_{name}.weight": np.array(values, dtype=np.float32) for name, values in lists.items()}
    if rope.get("rope_type") != "llama3":
        return {}
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), "cpu")
    head_dim = 2 * len(scaled)
    plain = config["rope_parameters"]["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    return {"rope_freqs.weight": (plain / scaled.numpy()).astype(np.float32)}


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the rotary embedding; of layers without a window where there are several."""
    parameters: dict[str, Any] = config["rope_parameters"]
    return parameters.get("full_attention", parameters)  # type: ignore[no-any-return]


def _rope_keys(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    rope = _rope(config)
    rotating = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    keys: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"]), "rope.dimension_count": rotating}
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if "llama_4_scaling_beta" in rope:
        keys |= {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": rope["llama_4_scaling_beta"]}
    if kind == "longrope":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys["rope.scaling.attn_factor"] = 1.0
    return keys


def _model_keys(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        **_eps_key(config),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "vocab_size": config["vocab_size"],
        **_rope_keys(config, head_dim),
    }
    found = [(key, config.get(name)) for name, key in _SCALES.items()]
    without = ("attention.sliding_window",) if architecture in ("qwen3", "qwen3moe", "qwen2moe") else ()
    keys |= {key: value for key, value in found if value is not None and key not in without}
    if architecture == "ernie4_5-moe":
        keys["expert_shared_feed_forward_length"] = config["moe_num_shared_experts"] * config["moe_intermediate_size"]
    if architecture in ("deepseek2", "dots1", "ernie4_5-moe", "glm4moe", "minimax-m2"):
        keys |= {key: config[name] for name, key in _ROUTED.items() if name in config}
        keys |= {
            "expert_gating_func": 1 if architecture == "ernie4_5-moe" else 2,
            "expert_feed_forward_length": config.get("moe_intermediate_size", config["intermediate_size"]),
        }
    if architecture == "deepseek2":
        keys |= _latent_keys(config)
    return {"general.name": "tiny", **{f"{architecture}.{key}": value for key, value in keys.items()}}


def _latent_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of latent attention, as files have them whose keys and values are one matrix, or two."""
    rank, rotating, values = (config[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim"))
    size, is_old = config["qk_nope_head_dim"] + rotating, config["joint"]
    keys = {
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotating,
        "attention.key_length": size if is_old else rank + rotating,
        "attention.value_length": values if is_old else rank,
    }
    if not is_old:
        keys |= {"attention.head_count_kv": 1, "attention.key_length_mla": size, "attention.value_length_mla": values}
    if config["model_type"] == "deepseek_v2":
        keys["expert_gating_func"] = None if is_old else 1
    if "mlp_layer_types" in config:
        keys["leading_dense_block_count"] = config["mlp_layer_types"].index("sparse")
    if "mscale_all_dim" in (rope := _rope(config)):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return keys


def _eps_key(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the eps of norms; LayerNorm has another name for it."""
    if "rms_norm_eps" in config:
        return {"attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"])}
    return {"attention.layer_norm_epsilon": float(config.get("layer_norm_eps") or config["norm_epsilon"])}


def _tokenizer_keys(pre: str, vocab_size: int) -> dict[str, Any]:
    vocab, merges = tiny_vocabulary()
    padding = [f"[PAD{index}]" for index in range(len(vocab), vocab_size)]
    control, normal, unused = (int(gguf.TokenType[name]) for name in ("CONTROL", "NORMAL", "UNUSED"))
    types = [control if piece in SPECIAL_TOKENS else normal for piece in vocab]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*vocab, *padding],
        "tokenizer.ggml.token_type": types + [unused] * len(padding),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": IM_START,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.padding_token_id": ENDOFTEXT,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add metadata, of a type by the value's."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _tensors(source: Path, config: Mapping[str, Any], architecture: str) -> Iterator[tuple[str, Array]]:
    from safetensors.numpy import load_file

    for file in sorted(source.glob("*.safetensors")):
        stacked = _split_heads(_stacked(load_file(file)), config)
        for name, data in _joined_qkv(stacked) if architecture == "chatglm" else stacked:
            layers = config["num_hidden_layers"]
            target = name if name.startswith("blk.") else file_tensor_name(name, architecture, layers)
            if architecture.startswith("gemma") and target.endswith("norm.weight"):
                data = data + 1
            if name.endswith("correction_bias"):
                data = data.reshape(-1)
            if "query_key_value" in name and architecture != "chatglm":
                data = _by_projection(data, config)
            yield target, interleaved(name, data, config, architecture)


def file_tensor_name(name: str, architecture: str, layers: int) -> str:
    """Return the name in GGUF files of a tensor of Hugging Face files."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    found = _name_map(architecture, layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


@cache
def _name_map(architecture: str, layers: int) -> gguf.TensorNameMap:
    (kind,) = [kind for kind, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture]
    return gguf.get_tensor_name_map(kind, layers)


def interleaved(name: str, data: Array, config: Mapping[str, Any], architecture: str) -> Array:
    """Return rows of queries and keys as files of an architecture have them, and others as they are."""
    return _interleave(name, data, config) if architecture in _INTERLEAVED else data


def _stacked(tensors: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield tensors as converters write them: those of all experts as one, and joined gates apart."""
    experts: dict[str, dict[int, Array]] = {}
    for name, data in tensors.items():
        if ".experts.gate_up_proj" in name or ".experts.down_proj" in name:
            yield from _of_gpt_oss(name, data)
        elif number := _EXPERT.search(name):
            experts.setdefault(_EXPERT.sub(".experts.", name), {})[int(number[1])] = data
        elif "moe.input_linear" in name or "shared_mlp.input_linear" in name:
            prefix = "mlp.experts" if "moe" in name else "mlp.shared_expert"
            for part, half in zip(("gate", "up"), np.split(data, 2, axis=-2), strict=True):
                yield re.sub(r"\w+\.input_linear", f"{prefix}.{part}_proj", name), half
        else:
            name = f"{name}.weight" if name.endswith(".sinks") else name
            yield name.replace("shared_mlp.output_linear", "mlp.shared_expert.down_proj"), data
    for name, parts in experts.items():
        yield name, np.stack([parts[number] for number in range(len(parts))])


def _split_heads(tensors: Iterable[tuple[str, Array]], config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield tensors with keys and values of latents apart, as new files have them: those of keys turned."""
    for name, data in tensors:
        if name.endswith("kv_b_proj.weight") and not config["joint"]:
            heads = data.reshape(config["num_attention_heads"], -1, data.shape[1])
            still = config["qk_nope_head_dim"]
            yield name.replace("kv_b_proj", "k_b_proj"), heads[:, :still].swapaxes(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), heads[:, still:]
        else:
            yield name, data


def _joined_qkv(tensors: Iterable[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    """Yield tensors with those of queries, keys and values as one, which converters of ChatGLM find so."""
    parts: dict[str, dict[str, Array]] = {}
    for name, data in tensors:
        if found := _QKV.fullmatch(name):
            joined = f"encoder.layers.{found[1]}.self_attention.query_key_value.{found[3]}"
            parts.setdefault(joined, {})[found[2]] = data
        else:
            yield name, data
    for name, each in parts.items():
        yield name, np.concatenate([each[part] for part in "qkv"])


def _by_projection(data: Array, config: Mapping[str, Any]) -> Array:
    """Return rows of all queries, keys and values, of rows of each head of keys with the queries that read it."""
    own, rest = config["num_attention_heads"] // config["num_key_value_heads"], data.shape[1:]
    grouped = data.reshape(config["num_key_value_heads"], own + 2, -1, *rest)
    parts = (grouped[:, :own], grouped[:, own], grouped[:, own + 1])
    return np.concatenate([part.reshape(-1, *rest) for part in parts])


def _of_gpt_oss(name: str, data: Array) -> Iterator[tuple[str, Array]]:
    """Yield what one tensor of gpt-oss has of all experts, where inputs come first, and gates and ups alternate."""
    layer, end = re.search(r"layers\.(\d+)\.", name)[1], "bias" if name.endswith("_bias") else "weight"  # type: ignore[index]
    turned = data if end == "bias" else data.swapaxes(1, 2)
    parts = {"gate": turned[:, ::2], "up": turned[:, 1::2]} if "gate_up" in name else {"down": turned}
    for part, each in parts.items():
        yield f"blk.{layer}.ffn_{part}_exps.{end}", each


def _interleave(name: str, data: Array, config: Mapping[str, Any]) -> Array:
    """Permute rows of queries and keys as in llama files: the two halves of a rotary pair adjacent."""
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config["num_key_value_heads"]
    else:
        return data
    paired = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
    return paired.swapaxes(1, 2).reshape(data.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: Array, quant: gguf.GGMLQuantizationType) -> None:
    """Add a tensor. Norms, biases and rows that do not divide into blocks stay F32."""
    block = gguf.GGML_QUANT_SIZES[quant][0]
    if data.ndim == 1 or name.endswith("bias") or data.shape[-1] % block:
        quant = gguf.GGMLQuantizationType.F32
    stored = gguf.quants.quantize(data.astype(np.float32), quant)
    writer.add_tensor(name, np.ascontiguousarray(stored), raw_dtype=quant)
