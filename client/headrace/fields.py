"""The keywords of requests and installs, typed. The names are those of the wire's messages; `fill` sets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Required, TypedDict

Seconds = float | timedelta
"""A time span: seconds, or a timedelta."""

TokenIdLists = Sequence[Sequence[int]]


class Lease(TypedDict, total=False):
    """How long a request is kept while nobody asks for it; 0 = for ever, up to the server's cap.

    Attributes:
        running: a running request is then stopped. Default 60 s.
        ended: an ended request is then released. Default 10 min.
    """

    running: Seconds
    ended: Seconds


class LogitsProcessor(TypedDict, total=False):
    """Code of the engine's operator that changes the logits which tokens are drawn from.

    Attributes:
        name: one of the model's `logits_processors`, which `get_model` and `list_models` tell.
        arguments: numbers that it is given; what they mean is its own affair. Default: none. At most 4096 for all
            processors of a request together.
    """

    name: Required[str]
    arguments: Sequence[float]


class GenerationFields(TypedDict, total=False):
    """How to generate. What is left out is the model's own generation_config.json, else the default named here.

    Lists of stops, bad words and EOS ids have at most 4096 entries each; all fields but mm_info together at most 1 MiB.

    Attributes:
        do_sample: draw tokens; False = the most likely. Default True.
        temperature: divides the logits; at least 0; 0 = the most likely. Default 1.0.
        top_k: keep the k most likely; 0 = all. Default 0.
        top_p: keep the smallest set whose probability reaches this, in (0, 1]. Default 1.0 = off.
        min_p: keep tokens at least this share as likely as the most likely, in [0, 1]. Default 0.
        seed: same seed, same draws. Default: drawn and reported.
        max_length: most tokens, prompt and generated; at least 1. Default: the model's own limit.
        max_new_tokens: most tokens generated; at least 1; the tighter of both limits holds.
        min_length: fewest tokens, prompt and generated, before EOS or a stop may end the request. Default 0.
        min_new_tokens: the same, generated only. Default 0.
        early_stopping: EOS ends the request. Default True.
        ignore_eos: EOS does not end it. Default False.
        eos_token_id: ids that end the request. Default: the model's.
        stop_words: strings that end it, names of special tokens among them; the earliest complete match wins, of those
            that end together the longest. At most 65536 characters in all.
        stop_words_ids: sequences of ids that end it, wholly generated ones. At most 65536 ids in all.
        stop_token_ids: single ids that end it.
        include_stop: keep the text of the stop. Default False.
        bad_words: strings never generated. At most 65536 characters in all.
        bad_words_ids: sequences of ids never generated. At most 65536 ids in all.
        no_repeat_ngram_size: no sequence of so many ids occurs twice. Default 0 = off.
        repetition_penalty: in (0, 2]. Default 1.0 = off.
        presence_penalty: in [-2, 2]. Default 0.
        frequency_penalty: in [-2, 2]. Default 0.
        suppress_repetition_in_generation: presence_penalty instead of repetition_penalty. Default False.
        n: sequences to return, 1 to 64; the others are `queue.choices`. Default 1.
        best_of: candidates of which the best n are returned, best first, 1 to 64. Above n nothing can be read before
            all of them have ended. Default n.
        num_beams: beams of a beam search. Default 1 = none.
        length_penalty: beams and candidates rank by the sum of their tokens' log-probabilities, as `logprobs` returns
            them, divided by the number of tokens to this power. Needs best_of above n. Default 1.0.
        logit_bias: added to the logits, by id.
        allowed_token_ids: only these ids may be generated.
        logits_processors: called in this order after all that changes logits above, before temperature; at most 16.
        logprobs: return log-probabilities. Default False.
        top_logprobs: alternatives to every token, 0 to 20; needs logprobs. Default 0.
        prompt_logprobs: alternatives to every prompt token, 0 to 20. Default: off.
        response_format: guided decoding: {"type": "json_object"}, {"type": "json_schema", "json_schema": {…}},
            {"type": "regex", "regex": …}, {"type": "choice", "choices": […]},
            {"type": "grammar", "text": …, "syntax": "LARK" or "EBNF"}.
        lora_name: adapter to apply. Default "" = none.
        mm_info: embeddings or images for the placeholder ids of the prompt.
        enable_tensors_from_model_inference: return input embedding and last hidden state. Default False.
        skip_special_tokens: leave special tokens out of the text. Default True.
        use_prefix_cache: read and fill the prefix cache. Default True.
        cache_salt: share cached prefixes only with the same salt; at most 1024 bytes. Default "".
        priority: higher is served first, before prompts under way too; equal ones share each step. Default 0.
        deadline: seconds from arrival after which the request ends with DEADLINE; above 0; refused (DEADLINE_NOT_MET)
            where by measured rates it cannot be met. Default: none.
        interrupt_policy: when memory runs out: "RESUME" (default) or "RETURN".
        lease: how long it is kept while nobody asks for it.

    The engine refuses these so far, by name and with the reason NOT_SUPPORTED, unless they are left out or ask for
    nothing: num_beams, lora_name, mm_info.
    """

    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    max_length: int | None
    max_new_tokens: int | None
    n: int | None
    stop_words: Sequence[str] | None
    logprobs: bool | None
    top_logprobs: int | None
    min_length: int | None
    min_new_tokens: int | None
    early_stopping: bool | None
    ignore_eos: bool | None
    eos_token_id: int | Sequence[int] | None
    stop_words_ids: TokenIdLists | None
    stop_token_ids: Sequence[int] | None
    include_stop: bool | None
    bad_words_ids: TokenIdLists | None
    bad_words: Sequence[str] | None
    no_repeat_ngram_size: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    suppress_repetition_in_generation: bool | None
    best_of: int | None
    num_beams: int | None
    length_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    allowed_token_ids: Sequence[int] | None
    logits_processors: Sequence[LogitsProcessor] | None
    prompt_logprobs: int | None
    response_format: Mapping[str, Any] | None
    lora_name: str | None
    mm_info: Sequence[Mapping[str, Any]] | None
    enable_tensors_from_model_inference: bool | None
    skip_special_tokens: bool | None
    use_prefix_cache: bool | None
    cache_salt: str | None
    priority: int | None
    deadline: Seconds | None
    interrupt_policy: Literal["RESUME", "RETURN"] | None
    lease: Lease | None


class ChatFields(TypedDict, total=False):
    """How a prompt becomes ids.

    Attributes:
        add_special_tokens: text only: add what the tokenizer puts at begin and end. Default: the tokenizer's own.
        add_generation_prompt: messages only: open the assistant's answer. Default True.
        continue_final_message: messages only: leave the last message open. Default False.
        template_variables: messages only: variables of the chat template, any values that JSON can hold.
        tools: messages only: tools for the template, each a dict or JSON text.
    """

    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    template_variables: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any] | str] | None


class StartFields(GenerationFields, ChatFields, total=False):
    """All further keywords of `start_request` and `generate`."""


class InstallFields(TypedDict, total=False):
    """How a model is installed. What is left out has the default named here; `get_model` tells what it became.

    Attributes:
        file_prefix: base name when one directory holds several models.
        revision: branch, tag or commit of a hub name.
        hub: URL of the hub that resolves a hub name, one that the engine's operator allows.
        format: "AUTO" (default), "HF", "GGUF", "HEADRACE".
        dtype: "AUTO" (default), "FLOAT32", "BFLOAT16", "FLOAT16".
        compute_unit: "CUDA", "CPU", or "CPU_NUMA": threads and a share of the weights on each memory node. Default:
            CUDA where there is one.
        device_list: numbers of the devices, or of CPU_NUMA's memory nodes. Default: the first, or all nodes.
        num_threads: compute threads on a CPU, 0 to 4096; 0 (default) = the physical cores one may use.
        max_batch: sequences in one step, 1 to 4096. Default 32.
        max_length: tokens of the longest sequence; at least 2. Default: the model's, at most what fits.
        max_prefill_tokens: tokens computed in one step, 1 to 1048576. Default 2048.
        block_size: tokens in a KV block, a power of two, 8 to 128. Default 16.
        num_blocks: blocks of the KV pool; 0 (default) = sized from memory.
        num_host_blocks: blocks in host memory for cached prefixes that the KV pool has no room for; 0 (default) = none,
            on any device.
        kv_cache_mode: "DEFAULT" (default), "INT8", "UINT4".
        enable_prefix_cache: reuse the KV of equal prefixes. Default True.
        prefix_cache_ttl: seconds after which unused cached blocks are dropped; above 0. Default: never.
        memory_ratio: share of the device's memory, in (0, 1]. Default 0.9 on CUDA.
        weight_quant: "NONE" (default), "INT8", "INT4". On a CPU, and by the backend "cuda".
        weight_quant_group_size: weights that share one scale; 0 = one a row. Default 128 for INT4, 0 for INT8.
        activation_quant: "NONE" (default), "INT8" (with integer weights, by the backend "cuda" with weight_quant "INT8"
            and weight_quant_group_size 0), "FP8" (by the backend "cuda", whose weights become FP8 too).
        rope_scaling: {"type": "MODEL" (default), "LINEAR", "DYNAMIC", "YARN" or "LLAMA3", …factors}.
        logn_attention: scale queries by the logarithm of the length. Default: as in the model.
        chat_template: Jinja template instead of the model's own.
        max_waiting: sequences that may wait, 0 to 1048576. Default 256. One caller may have three times as many waiting
            as are left.
        drain_limit: seconds that `stop_model` lets requests run; at least 0. Default 30.
        default_lease: lease of requests that set none.
        max_lease: the longest lease a request may set, in seconds; above 0. Default 3600.
        default_seed: seed of requests that set none. Default: drawn anew.
        max_result_bytes: bytes that one owner's requests may take: results, and what they brought; at least 1.
            Default 256 MiB.
        adapters: LoRA adapters, each {"name": …, "path": …}.
        lora_max_num: adapters that may be loaded at once.
        lora_max_rank: largest rank of an adapter.
        tensor_parallel: devices that share one copy of the model; at least 1. Default 1.

    The engine refuses these so far, by name and with the reason NOT_SUPPORTED, unless they are left out or ask for
    nothing: logn_attention, adapters, lora_max_num, lora_max_rank, tensor_parallel;
    of format "HEADRACE"; of rope_scaling "DYNAMIC" and "YARN";
    of weight_quant_group_size all but 0, 16, 32, 64 and 128.
    """

    file_prefix: str | None
    revision: str | None
    hub: str | None
    format: str | None
    dtype: str | None
    compute_unit: str | None
    device_list: Sequence[int] | None
    num_threads: int | None
    max_batch: int | None
    max_length: int | None
    max_prefill_tokens: int | None
    block_size: int | None
    num_blocks: int | None
    num_host_blocks: int | None
    kv_cache_mode: str | None
    enable_prefix_cache: bool | None
    prefix_cache_ttl: Seconds | None
    memory_ratio: float | None
    weight_quant: str | None
    weight_quant_group_size: int | None
    activation_quant: str | None
    rope_scaling: Mapping[str, Any] | None
    logn_attention: bool | None
    chat_template: str | None
    max_waiting: int | None
    drain_limit: Seconds | None
    default_lease: Lease | None
    max_lease: Seconds | None
    default_seed: int | None
    max_result_bytes: int | None
    adapters: Sequence[Mapping[str, str]] | None
    lora_max_num: int | None
    lora_max_rank: int | None
    tensor_parallel: int | None
