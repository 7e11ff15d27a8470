"""The fields of a model's runtime config: ranges, defaults, and what each does."""

from __future__ import annotations

from headrace_engine.config import ActivationQuant, KvCacheMode, ModelFormat, WeightQuant
from headrace_engine.engine.config.field_checks import UINT32, UINT64, Field, table
from headrace_engine.engine.config.fields import MAX_ENTRIES

RUNTIME = table(
    Field("model_name", text="name that all calls use, unique in one engine"),
    Field("model_path", text="directory, file or hub name, on the engine's host, inside its model roots"),
    Field("file_prefix", text="base name when one directory holds several models"),
    Field("revision", text="branch, tag or commit of a hub name"),
    Field("hub", text="hub that resolves a hub name, one that the operator allows (--hub); unset: the engine's"),
    Field(
        "format",
        default=ModelFormat.AUTO,
        honoured=(ModelFormat.AUTO, ModelFormat.HF, ModelFormat.GGUF),
        text="layout of the model's files",
    ),
    Field("dtype", text="number format of weights and activations; unset: AUTO"),
    Field("compute_unit", text="kind of device; unset: CUDA where there is one"),
    Field(
        "device_list",
        most=MAX_ENTRIES,
        text="numbers of the devices, or of CPU_NUMA's memory nodes; unset: the first device, or all nodes",
    ),
    Field("num_threads", 0, 4096, default=0, text="compute threads on a CPU; 0: the physical cores one may use"),
    Field("max_batch", 1, 4096, default=32, text="sequences in one step"),
    Field("max_length", 2, UINT32, text="tokens of the longest sequence; unset: the model's, at most what fits"),
    Field("max_prefill_tokens", 1, 2**20, default=2048, text="tokens computed in one step"),
    Field("block_size", 8, 128, default=16, text="tokens in a KV block"),
    Field("num_blocks", 0, 2**31 - 1, default=0, text="blocks of the KV pool; 0: sized from memory"),
    Field(
        "num_host_blocks",
        0,
        2**31 - 1,
        default=0,
        text="blocks in host memory for cached prefixes that the KV pool has no room for; 0: none, on any device",
    ),
    Field("kv_cache_mode", default=KvCacheMode.DEFAULT, text="how keys and values are stored"),
    Field("enable_prefix_cache", default=True, text="reuse keys and values of equal prefixes"),
    Field(
        "prefix_cache_ttl", 0, above_low=True, text="seconds after which unused cached blocks are dropped; unset: never"
    ),
    Field(
        "memory_ratio",
        0,
        1,
        above_low=True,
        text="share of the device's memory; unset: 0.9 on CUDA, on a CPU the pool is sized by tokens",
    ),
    Field("weight_quant", default=WeightQuant.NONE, text="quantisation of weights at load"),
    Field(
        "weight_quant_group_size",
        0,
        honoured=(0, 16, 32, 64, 128),
        text="weights that share one scale, 0 one a row; unset: 128 for INT4, 0 for INT8",
    ),
    Field(
        "activation_quant",
        default=ActivationQuant.NONE,
        text="quantisation of activations at run time: INT8 with integer weights, FP8 by the backend cuda",
    ),
    Field("rope_scaling", text="method and factors that stretch rotary positions; unset: as in the model"),
    Field(
        "logn_attention", honoured=(False,), text="scale queries by the logarithm of the length; unset: as in the model"
    ),
    Field("chat_template", text="Jinja template instead of the model's own"),
    Field(
        "max_waiting",
        0,
        2**20,
        default=256,
        text="sequences that may wait, a caller's at most three times what is left; beyond, starts are refused",
    ),
    Field("drain_limit", 0, default=30.0, text="seconds that StopModel lets requests run"),
    Field("default_lease", text="lease of requests that set none; unset: 60 s running, 10 min ended"),
    Field(
        "max_lease",
        0,
        2**31 - 1,
        above_low=True,
        default=3600.0,
        text="longest lease that a request may set, in seconds",
    ),
    Field("default_seed", 0, UINT64, text="seed of requests that set none; unset: drawn anew"),
    Field(
        "max_result_bytes",
        1,
        UINT64,
        default=256 * 2**20,
        text="bytes that one owner's requests may take: results, and what they brought",
    ),
    Field("adapters", honoured=(), most=MAX_ENTRIES, text="LoRA adapters that requests may name"),
    Field("lora_max_num", 0, honoured=(0,), text="adapters that may be loaded at once"),
    Field("lora_max_rank", 0, honoured=(0,), text="largest rank of an adapter"),
    Field("tensor_parallel", 1, default=1, honoured=(1,), text="devices that share one copy of the model"),
)
