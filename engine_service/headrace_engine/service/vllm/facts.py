"""Reports of model, server and load in vLLM's service."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as wire

from headrace_engine.engine.text.tokenizer_files import TokenizerFiles, model_type
from headrace_engine.model_types import ModelView, ServerInfo
from headrace_engine.stat_types import EngineStat


def model_info(view: ModelView, tokenizer: TokenizerFiles) -> Any:
    """Describe the model."""
    effective = view.effective
    assert effective is not None, "an installed model has an effective config"
    config = effective.config
    most = config.max_length or effective.model_max_length
    return wire.GetModelInfoResponse(
        model_path=config.model_path,
        served_model_name=view.model_name,
        is_generation=True,
        max_context_length=most,
        max_req_input_len=most - 1,
        vocab_size=effective.vocab_size,
        model_type=model_type(effective.architecture),
        architectures=[effective.architecture],
        eos_token_ids=tokenizer.eos_ids,
        bos_token_id=tokenizer.bos_id or 0,
    )


def server_info(info: ServerInfo, stat: EngineStat, view: ModelView, receiving: float) -> Any:
    """Describe the engine. `receiving`: time of the last request, in seconds since the Unix epoch."""
    effective = view.effective
    config = None if effective is None else effective.config
    return wire.GetServerInfoResponse(
        server_type="vllm-grpc",
        active_requests=stat.running + stat.waiting,
        is_paused=info.draining,
        last_receive_timestamp=receiving,
        uptime_seconds=time.time() - info.start_time,
        data_parallel_size=1,
        kv_cache_dtype="" if config is None else str(config.kv_cache_mode or "").lower(),
        block_size=0 if config is None else config.block_size or 0,
        model_dtype="" if config is None else str(config.dtype or "").lower(),
        max_num_seqs=0 if config is None else config.max_batch or 0,
        constrained_decoding_start="first_token",
    )


def loads(info: ServerInfo, stat: EngineStat, view: ModelView, to_prefill: int) -> Any:
    """Tell the load of the model. `to_prefill`: prompt tokens still to compute."""
    used = stat.tokens_total - stat.tokens_free
    batch = 0 if view.effective is None else view.effective.config.max_batch or 0
    hits, misses = stat.counters.prefix_cache_hit_tokens, stat.counters.prefix_cache_miss_tokens
    load = wire.SchedulerLoad(
        num_running_reqs=stat.running,
        num_waiting_reqs=stat.waiting,
        num_total_reqs=stat.running + stat.waiting,
        num_used_tokens=used,
        max_total_num_tokens=stat.tokens_total,
        token_usage=used / stat.tokens_total if stat.tokens_total else 0.0,
        gen_throughput=stat.rates.generated_tps,
        cache_hit_rate=hits / (hits + misses) if hits + misses else 0.0,
        utilization=stat.running / batch if batch else 0.0,
        max_running_requests=batch,
        num_waiting_uncached_tokens=to_prefill if stat.waiting else 0,
    )
    now = datetime.now(UTC).isoformat()
    return wire.GetLoadsResponse(timestamp=now, version=info.build, dp_rank_count=1, loads=[load])
