"""The keywords of an install, typed. Made by `make fields` from the wire contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from headrace._values.field_values import Lease, Seconds


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
        num_threads: Compute threads on a CPU, of all ranks together; 0 = physical cores within quota and affinity. 0 to
            4096. Default 0.
        max_batch: Sequences in one step. 1 to 4096. Default: 32; on CUDA 256, at most max_prefill_tokens.
        max_length: Tokens of the longest sequence, prompt and generated. At least 2. Default: the model's, at most what
            fits.
        max_prefill_tokens: Tokens computed in one step (budget for prefill chunks); at least max_batch. 1 to 1048576.
            Default: 2048; on CUDA 8192, at least max_batch.
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
        tensor_parallel: Ranks, each a process with a device of its own or its share of the CPU's threads, that share
            one copy of the model (docs/tensor-parallel.md); must divide the number of KV heads. By the backends cpu and
            torch. 1 to 64. Default 1.
        tensor_parallel_mode: With tensor_parallel above 1: how they share it. One of "EXACT", "REDUCED". Default
            "EXACT".
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
    tensor_parallel_mode: Literal["EXACT", "REDUCED"] | None
