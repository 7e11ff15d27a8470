"""The keywords of configs, typed. Made by `make fields` from the wire contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Required, TypedDict

Seconds = float | timedelta
"""A time span: seconds, or a timedelta."""

TokenIdLists = Sequence[Sequence[int]]


class Lease(TypedDict, total=False):
    """How long a request is kept while nobody is attached to it or asks for it.

    No part is longer than max_lease: a longer one is refused with INVALID_FIELD, "for ever" (0) and a longer default
    are lowered to it, as the effective config shows.

    Attributes:
        running: A running request is then stopped (LEASE_EXPIRED). Default 60 s; 0 = for ever, as far as max_lease
            allows.
        ended: An ended request is then released. Default 10 min; 0 = for ever, as far as max_lease allows.
    """

    running: Seconds
    ended: Seconds


class LogitsProcessor(TypedDict, total=False):
    """Code that the engine's operator started it with, which changes the logits that tokens are sampled from.

    It comes after penalties, n-grams, minimum lengths, bad words, biases and allowed ids, and before temperature; what
    those, or a response format, rule out stays ruled out.

    Attributes:
        name: One of EffectiveConfig.logits_processors. Required.
        arguments: What it is given, as float32; their meaning is up to the processor. At most 4096 for all processors
            of a request together. Default: none.
    """

    name: Required[str]
    arguments: Sequence[float]


class GenerationFields(TypedDict, total=False):
    """How to generate.

    An unset field means the model's own generation_config.json, else the default named here; an empty list counts as
    unset. Out of range is INVALID_ARGUMENT; nothing is rewritten. Real numbers are doubles, so that the effective
    config echoes exactly what was sent. Lists of stops, bad words and EOS ids have at most 4096 entries each; the
    config without its media has at most 1 MiB.

    Attributes:
        do_sample: Sample tokens; False = take the most likely, whatever the other sampling fields say. Default True.
        temperature: Divides the logits; 0 = the most likely token. At least 0. Default 1.0.
        top_k: Keep the k most likely and ties with the k-th; 0 = all, 1 = the most likely. Default 0.
        top_p: Keep the smallest set whose probability reaches this, ties at its edge included; 1 = off. In (0, 1].
            Default 1.0.
        min_p: Keep tokens at least this share as likely as the most likely; 0 = off. In [0, 1]. Default 0.0.
        seed: Key of the random numbers: same seed, same samples. Default: default_seed of the model, else random;
            reported.
        max_length: Maximum number of tokens, prompt and generated. At least 1. Default: the model's own limit, which is
            also the largest value.
        max_new_tokens: Maximum number of tokens generated; the tighter of the two limits holds, whether max_length is
            the request's or the model's: one that is larger than what max_length leaves after the prompt has a warning.
            At least 1. Default: no limit of its own.
        n: Sequences to return. 1 to 64. Default 1.
        stop_words: Strings that end the request when the generated text contains one; the earliest complete match wins,
            of those that end together the longest. Names of special tokens are those tokens too. At most 65536
            characters in all. At most 4096 entries.
        logprobs: Return the log-probability of every token: the log-softmax of the model's own logits over its ids.
            Default False.
        top_logprobs: Alternatives to return for every token; needs logprobs. 0 to 20. Default 0.
        min_length: Minimum number of tokens, prompt and generated, before EOS or a stop may end the request. Default 0.
        min_new_tokens: Minimum number of tokens generated before EOS or a stop may end the request. Until then EOS ids
            are masked, and stops are generated like anything else. Default 0.
        early_stopping: EOS ends the request; must not equal ignore_eos. Default True.
        ignore_eos: EOS does not end the request, stops still do; must not equal early_stopping. Default False.
        eos_token_id: Ids that end the request. At most 4096 entries. Default: all that the model's generation config,
            its config or its tokenizer names.
        stop_words_ids: Sequences of ids that end the request; a match lies wholly in the generated part. At most 65536
            ids in all. At most 4096 entries.
        stop_token_ids: Single ids that end the request. At most 4096 entries.
        include_stop: Keep the text of the stop that matched, special tokens included. Without it, the text ends before
            the stop, and EOS is not in it either. Default False.
        bad_words_ids: Sequences of ids never generated: the token that would complete one is masked. At most 4096
            entries.
        bad_words: Strings never generated, by the ids that the tokenizer gives them. At most 4096 entries.
        no_repeat_ngram_size: Length of the id sequences that may not occur twice in prompt and generated; 0 = off.
            Default 0.
        repetition_penalty: Divides positive and multiplies negative logits of ids in prompt and generated, once an id;
            1 = off. In (0, 2]. Default 1.0.
        presence_penalty: Subtracted from the logit of every id already generated. In [-2, 2]. Default 0.0.
        frequency_penalty: Subtracted from the logit once for each time the id was generated. In [-2, 2]. Default 0.0.
        suppress_repetition_in_generation: Use presence_penalty and leave repetition_penalty out. Default False.
        best_of: Candidates to generate, of which the best n are returned, best first; at least n. Above n, nothing is
            readable before all ended. Those that ended by themselves come before those that were ended (stopped, late,
            drained, out of memory), and those before failures; then length_penalty's score ranks them. 1 to 64.
            Default: n.
        num_beams: Beams of a beam search, as transformers' generate defines it; 1 = none. Nothing is sampled, and
            do_sample is False. The best n texts are returned, best first; nothing is readable before the search ends,
            and nothing at all where it is ended early. Penalties, bans, biases and logits processors change log-
            probabilities, and what they leave is added up. Each beam counts as a sequence in max_batch and max_waiting.
            Not together with stop_words, stop_words_ids, best_of above n, and enable_tensors_from_model_inference. 1 to
            64. Default 1.
        beam_stopping: When a beam search ends; needs num_beams above 1. One of "HEURISTIC", "FIRST", "NEVER". Default
            "HEURISTIC".
        length_penalty: Candidates and beams rank by the sum of their log-probabilities divided by the number of tokens
            to this power; another than the default needs best_of above n, or num_beams above 1. That of EOS or a stop
            is included. Candidates rank by the model's own log-probabilities, as logprobs returns them. Default 1.0.
        logit_bias: Added to the logits, by id. Finite; ids below vocab_size.
        allowed_token_ids: Only these ids may be generated. Default: all.
        prompt_logprobs: Log-probabilities of the prompt's tokens with this many alternatives. Reads no prefix cache. 0
            to 20. Default: off.
        response_format: Guided decoding: what the output must match. Form: {"type": "json_object"}, {"type":
            "json_schema", "json_schema": {…}}, {"type": "regex", "regex": "[0-9]+"}, {"type": "choice", "choices":
            ["yes", "no"]} or {"type": "grammar", "text": …, "syntax": "LARK" or "EBNF"}.
        logits_processors: Logits processors of the engine's operator, called in this order. They come after all that
            changes logits above, and before temperature. At most 4096 arguments in all. At most 16 entries.
        lora_name: LoRA adapter to apply, one of those that the model has loaded; empty = none. Keys of the prefix cache
            contain its content. At most 128 bytes. Default "".
        mm_info: Embeddings or images for placeholder ids. Part of the prefix cache's key. At most 4096 entries. Not
            supported so far.
        enable_tensors_from_model_inference: Return input embedding and last hidden state of every token. Default False.
        skip_special_tokens: Leave special tokens out of the text, never out of the ids. See Chat.keep_marks. Default
            True.
        use_prefix_cache: Read and fill the prefix cache. Default True.
        cache_salt: Requests share cached prefixes only with those of the same salt. At most 1024 bytes. Default "".
        use_speculation: Compute drafted ids of this request where the model was installed with speculation. Results are
            the same without. Default True.
        priority: Higher is served first, also before prompts in progress. Of equal ones each has a share of every step,
            so that a short request starts in one of the next steps alongside any long prompt. No request waits for
            ever. Default 0.
        deadline: Time from arrival, in seconds, after which the request ends with DEADLINE, with what it has generated
            by then. One that cannot be met by measured rates is refused (DEADLINE_NOT_MET). Above 0. Default: none.
        interrupt_policy: When memory runs out: continue later (RESUME), or end with what is there (RETURN). One of
            "RESUME", "RETURN". Default "RESUME".
        lease: How long the request outlives its readers. Default: default_lease of the model.
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
    stop_token_ids: int | Sequence[int] | None
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
    beam_stopping: Literal["HEURISTIC", "FIRST", "NEVER"] | None
    length_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    allowed_token_ids: int | Sequence[int] | None
    prompt_logprobs: int | None
    response_format: Mapping[str, Any] | None
    logits_processors: Sequence[LogitsProcessor] | None
    lora_name: str | None
    mm_info: Sequence[Mapping[str, Any]] | None
    enable_tensors_from_model_inference: bool | None
    skip_special_tokens: bool | None
    use_prefix_cache: bool | None
    cache_salt: str | None
    use_speculation: bool | None
    priority: int | None
    deadline: Seconds | None
    interrupt_policy: Literal["RESUME", "RETURN"] | None
    lease: Lease | None


class InstallFields(TypedDict, total=False):
    """How a model is installed.

    An unset field means the default named here; get_model answers what it became. What this build does not honour yet
    is refused by name, and so is an unknown field.

    Attributes:
        file_prefix: Beginning of the files' names when one directory holds several models; names no folder. Default:
            none.
        revision: Branch, tag or commit of a hub name. Default: the hub's main branch.
        hub: URL of the hub that resolves a hub name, one of those that the engine's operator allows (--hub). Default:
            the engine's own.
        format: Layout of the model's files. One of "AUTO", "HF", "GGUF", "HEADRACE". Default "AUTO".
        dtype: Number format to compute in. One of "AUTO", "FLOAT32", "BFLOAT16", "FLOAT16". Default: AUTO.
        compute_unit: Kind of device. CUDA is experimental: nothing has been run on a card yet. CPU_NUMA: threads and a
            share of the weights on each memory node. One of "CUDA", "CPU", "CPU_NUMA". Default: CUDA where there is
            one, else CPU.
        device_list: Numbers of the devices to use, distinct; of the memory nodes with CPU_NUMA. At most 4096 entries.
            Default: as few devices as tensor_parallel needs, from 0, and all memory nodes.
        num_threads: Compute threads on a CPU; 0 = physical cores within quota and affinity. 0 to 4096. Default 0.
        max_batch: Sequences in one step. 1 to 4096. Default 32.
        max_length: Tokens of the longest sequence, prompt and generated. At least 2. Default: the model's, at most what
            fits.
        max_prefill_tokens: Tokens computed in one step (budget for prefill chunks); at least max_batch. 1 to 1048576.
            Default 2048.
        block_size: Tokens in a KV block; a power of two. 8 to 128. Default 16.
        num_blocks: Blocks of the KV pool; 0 = sized from memory. 0 to 2147483647. Default 0.
        num_host_blocks: Blocks in host memory for cached prefixes that do not fit in the KV pool; 0 = none, on any
            device: they are never sized from memory. 0 to 2147483647. Default 0.
        kv_cache_mode: How keys and values are stored. One of "DEFAULT", "INT8", "UINT4". Default "DEFAULT".
        enable_prefix_cache: Reuse the KV of equal prefixes. Default True.
        prefix_cache_ttl: Seconds after which unused cached blocks are dropped. Above 0. Default: never, only when
            blocks run out.
        memory_ratio: On CUDA share of total device memory, on a CPU share of the memory limit for the KV pool. In (0,
            1]. Default: on CUDA 0.9 or BFC_MEM_RATIO; on a CPU max_batch times max_length tokens, at most a quarter.
        weight_quant: Quantization of weights at load: on a CPU, and by the backend cuda. One of "NONE", "INT8", "INT4".
            Default "NONE".
        weight_quant_group_size: Weights that share one scale, for INT4 and INT8; 0 = one a row. Default: 128 for INT4,
            0 for INT8. Only 0, 16, 32, 64, 128 so far.
        activation_quant: Quantization of activations at run time: INT8 with integer weights (by the backend cuda with
            weight_quant INT8 and weight_quant_group_size 0), FP8 by the backend cuda, whose weights become FP8 too. One
            of "NONE", "INT8", "FP8". Default "NONE".
        rope_scaling: Method and factors that stretch rotary positions (docs/models.md). Form: {"type": "LINEAR",
            "factor": 2.0}; types are "MODEL" (the default), "LINEAR", "DYNAMIC", "YARN" and "LLAMA3". Default: as in
            the model.
        logn_attention: Scale queries by the logarithm of the length (log-n attention). Default: as in the model. Only
            False so far.
        chat_template: Chat template (Jinja) instead of the model's own. Default: the model's.
        max_waiting: Sequences that may wait; beyond it start_request is refused; 0 = none may wait. One caller (an
            owner; without owners a connection, also behind a gateway) may have three times as many waiting as slots are
            left, so three quarters where no other caller waits, and always one where a slot is left. A sequence that
            fits in the batch at once takes no slot. 0 to 1048576. Default 256.
        drain_limit: Seconds that stop_model lets requests run; 0 = end them at once. At least 0. Default 30.0.
        default_lease: Lease of requests that set none. Default: 60 s running, 10 min ended.
        max_lease: The longest that a part of a lease may be, in seconds; a longer one is refused, "for ever" becomes
            this. In (0, 2147483647]. Default 3600.0.
        default_seed: Seed of requests that set none. Default: random for each, and reported.
        max_result_bytes: Bytes that one owner's requests to this model may take: their logs, and what they brought
            (prompt, config, stops, rules, response format) beyond 1024 bytes each; after the last token, the logs and
            the config. At least 1. Default 268435456.
        speculation: Where drafted ids come from (docs/speculation.md); results stay what they are without. By the
            backend cpu, and all but DRAFT by torch. One of "OFF", "GRAMMAR", "NGRAM", "DRAFT". Default "OFF".
        max_drafts: Drafted ids of one sequence in a step. 1 to 15. Default 7.
        draft_model: With speculation DRAFT, and only then: a smaller model with the same vocabulary, whose ids are the
            drafts. By the rules of model_path; in any format, as it is in its files. Its weights and its keys and
            values take memory too. Default: none.
        adapters: LoRA adapters to load at install (docs/adapters.md). At most 256 entries. Form: {"name": …, "path":
            …}. Default: none.
        lora_max_num: Adapters that may be loaded at once. Memory for as many is taken when the model starts. 0 to 256.
            Default: the number of adapters.
        lora_max_rank: Largest rank of an adapter. 0 to 512. Default: the largest among adapters.
        tensor_parallel: Devices that share one copy of the model; must divide the number of KV heads. At least 1.
            Default 1. Only 1 so far.
    """

    file_prefix: str | None
    revision: str | None
    hub: str | None
    format: Literal["AUTO", "HF", "GGUF", "HEADRACE"] | None
    dtype: Literal["AUTO", "FLOAT32", "BFLOAT16", "FLOAT16"] | None
    compute_unit: Literal["CUDA", "CPU", "CPU_NUMA"] | None
    device_list: int | Sequence[int] | None
    num_threads: int | None
    max_batch: int | None
    max_length: int | None
    max_prefill_tokens: int | None
    block_size: int | None
    num_blocks: int | None
    num_host_blocks: int | None
    kv_cache_mode: Literal["DEFAULT", "INT8", "UINT4"] | None
    enable_prefix_cache: bool | None
    prefix_cache_ttl: Seconds | None
    memory_ratio: float | None
    weight_quant: Literal["NONE", "INT8", "INT4"] | None
    weight_quant_group_size: int | None
    activation_quant: Literal["NONE", "INT8", "FP8"] | None
    rope_scaling: Mapping[str, Any] | None
    logn_attention: bool | None
    chat_template: str | None
    max_waiting: int | None
    drain_limit: Seconds | None
    default_lease: Lease | None
    max_lease: Seconds | None
    default_seed: int | None
    max_result_bytes: int | None
    speculation: Literal["OFF", "GRAMMAR", "NGRAM", "DRAFT"] | None
    max_drafts: int | None
    draft_model: str | None
    adapters: Sequence[Mapping[str, Any]] | None
    lora_max_num: int | None
    lora_max_rank: int | None
    tensor_parallel: int | None
