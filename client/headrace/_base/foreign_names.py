"""Names that other systems use for our fields, so that an error can suggest the right keyword."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OURS: Mapping[str, tuple[str, ...]] = {
    # Generation.
    "max_new_tokens": (
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_gen_len", "n_predict", "num_predict",
    ),
    "min_new_tokens": ("min_tokens",),
    "stop_words": ("stop", "stop_sequences", "stop_strings", "stop_word", "stop_str"),
    "stop_words_ids": ("stop_sequences_ids", "stop_ids"),
    "stop_token_ids": ("stop_token_id", "stop_tokens"),
    "include_stop": ("include_stop_str_in_output", "no_stop_trim"),
    "bad_words": ("stop_bad_words", "banned_words", "bad_words_list"),
    "eos_token_id": ("eos_token_ids", "eos_id", "eos"),
    "n": ("num_return_sequences", "num_completions"),
    "num_beams": ("beam_width", "beam_size"),
    "temperature": ("temp",),
    "seed": ("random_seed", "sampling_seed", "rng_seed"),
    "repetition_penalty": ("repeat_penalty",),
    "top_logprobs": ("top_n_tokens", "num_logprobs", "n_probs"),
    "response_format": (
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "regex", "grammar", "ebnf",
        "structured_outputs", "guided_decoding",
    ),
    "lora_name": ("lora", "adapter", "adapter_name", "lora_request", "lora_path"),
    "use_prefix_cache": ("cache_prompt",),
    "deadline": ("time_limit", "max_time"),
    "tools": ("functions",),
    "template_variables": ("chat_template_kwargs", "template_kwargs"),
    # Prompts.
    "ids": ("input_ids", "prompt_ids", "token_ids", "prompt_token_ids"),
    "messages": ("chat", "conversation"),
    "text": ("input", "inputs"),
    # Installs.
    "max_length": ("max_model_len", "max_seq_len", "max_seq_length", "n_ctx", "ctx_size", "context_length"),
    "max_batch": ("max_batch_size", "batch_size", "max_num_seqs", "max_running_requests"),
    "max_prefill_tokens": ("max_num_batched_tokens", "chunked_prefill_size"),
    "memory_ratio": ("gpu_memory_utilization", "gpu_memory_fraction", "mem_fraction_static"),
    "tensor_parallel": ("tensor_parallel_size", "tp_size", "tp"),
    "weight_quant": ("quantization", "weight_quantization"),
    "kv_cache_mode": ("kv_cache_dtype", "cache_type_k", "cache_type_v"),
    "enable_prefix_cache": ("enable_prefix_caching", "enable_cache"),
    "num_blocks": ("num_gpu_blocks", "num_gpu_blocks_override"),
    "num_threads": ("threads", "n_threads"),
    "compute_unit": ("device", "device_type"),
    "dtype": ("torch_dtype", "data_type"),
    # Clients.
    "retry": ("retries", "max_retries", "retry_policy"),
    "api_key": ("token", "key", "auth"),
}  # fmt: skip
"""Names in other systems, by ours."""

_FOREIGN = {foreign: ours for ours, names in OURS.items() for foreign in names}


def our_name(foreign: str, known: Iterable[str]) -> str | None:
    """Return the one of the known names that another system calls `foreign`; None if there is none."""
    ours = _FOREIGN.get(foreign.lower().replace("-", "_"))
    return ours if ours in set(known) else None
