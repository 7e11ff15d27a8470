"""What calls about models and servers answer, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.errors import HeadraceError
from headrace.types import ConfigWarning, ModelState


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """How far the verb in progress has come.

    Attributes:
        phase: "DOWNLOADING", "READING", "CONVERTING", "LOADING", "ALLOCATING", "WARMING_UP", "DRAINING" or "FREEING".
        bytes_done: bytes of this phase done; 0 in phases that count none.
        bytes_total: bytes of this phase in all; None where it is not known.
    """

    phase: str
    bytes_done: int
    bytes_total: int | None


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """What an install became: every choice made and every size computed. Sizes are 0 until the model is started.

    Attributes:
        config: every install field, by name.
        devices: the devices in use, by name.
        architecture: as the model's files name it.
        resolved_revision: commit or digest of the files.
        weight_bytes: bytes of weights.
        workspace_bytes: bytes of workspace.
        kv_bytes: bytes of the KV pool.
        kv_tokens: tokens that the KV pool holds.
        host_kv_bytes: bytes of the KV pool in host memory.
        host_kv_tokens: tokens that it holds.
        vocab_size: ids are below it.
        model_max_length: the model's own limit of max_length.
        generation_defaults: generation config of a request that sets nothing.
        warnings: what looks like a mistake.
        logits_processors: names of those that requests to the model may choose.
    """

    config: Mapping[str, Any]
    devices: tuple[str, ...]
    architecture: str
    resolved_revision: str
    weight_bytes: int
    workspace_bytes: int
    kv_bytes: int
    kv_tokens: int
    host_kv_bytes: int
    host_kv_tokens: int
    vocab_size: int
    model_max_length: int
    generation_defaults: Mapping[str, Any]
    warnings: tuple[ConfigWarning, ...]
    logits_processors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model on one engine.

    Attributes:
        model_name: its name.
        engine: the engine's name.
        state: where it is in its life cycle.
        wanted_state: what the engine works towards.
        failure: why it FAILED, or why this engine did not do what was asked; None: no failure.
        progress: the verb in progress; None: none.
        effective: what the config became; None in lists and while nothing is known.
        state_time: when the state was entered; None where the engine did not say.
        logits_processors: names of those that requests may choose; none until the model was started.
    """

    model_name: str
    engine: str
    state: ModelState
    wanted_state: ModelState
    failure: HeadraceError | None
    progress: ModelProgress | None
    effective: EffectiveConfig | None
    state_time: datetime | None
    logits_processors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What lies at a path.

    Attributes:
        engine: the engine that looked.
        format: "HF", "GGUF" or "HEADRACE".
        architecture: as the files name it.
        config: the model's own config.
        generation_config: its generation config as Headrace reads it.
        max_length: the longest sequence it was made for, tokens.
        vocab_size: number of ids.
        num_parameters: number of parameters.
        weight_bytes: bytes of weights on disk.
        kv_bytes_per_token: bytes of KV for one token in the model's dtype.
        chat_template: its chat template; None: it has none.
        resolved_revision: commit or digest of the files.
        refusal: why an install would be refused; None: it would not.
    """

    engine: str
    format: str
    architecture: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    max_length: int
    vocab_size: int
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    chat_template: str | None
    resolved_revision: str
    refusal: HeadraceError | None


@dataclass(frozen=True, slots=True)
class EngineStat:
    """What an engine does with one model now. Counters run from the start of the instance.

    Attributes:
        model_name: the model.
        engine: name of the engine.
        state: state of the model; the other figures are 0 unless it is RUNNING or STOPPING.
        running: requests in the batch.
        waiting: requests that wait.
        blocks_total: blocks of the KV pool: used, cached and free together.
        blocks_used: blocks that live requests hold.
        blocks_cached: blocks that only the prefix cache holds.
        blocks_free: blocks that hold nothing.
        host_blocks_total: blocks in host memory.
        host_blocks_used: of these, blocks that hold what the KV pool had no room for.
        tokens_total: tokens that the pool holds.
        tokens_free: tokens that new requests could take.
        prefix_cache_hit_tokens: prompt tokens found in the prefix cache.
        prefix_cache_host_hit_tokens: of these, tokens found in host memory.
        prefix_cache_miss_tokens: prompt tokens looked up and not found.
        prefix_cache_hit_rate: hits of all looked up, 0 to 1; None before the first look-up.
        prefix_cache_miss_rate: misses of all looked up, 0 to 1.
        pool_bytes_total: bytes of device memory set aside.
        pool_bytes_used: bytes of it that hold something.
        generated_tokens: tokens generated.
        prefilled_tokens: prompt tokens computed.
        generated_tps: tokens generated a second, mean of the last 10 s.
        prefilled_tps: prompt tokens computed a second, mean of the last 10 s.
        step_time_p50: median time of a step in ms, last 10 s; None: no step.
        step_time_p99: time of a step in ms that 99 of 100 stay below; None: no step.
        batch_size: mean number of sequences in a step, last 10 s.
        instance_id: name of this start of the service; a new one: its results are gone.
        core_epoch: starts of the core within this instance, from 1.
        api_version: version of the contract.
        build: version and commit of the engine.
        time: when these figures were taken, ms since the epoch.
    """

    model_name: str
    engine: str
    state: ModelState
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    host_blocks_total: int
    host_blocks_used: int
    tokens_total: int
    tokens_free: int
    prefix_cache_hit_tokens: int
    prefix_cache_host_hit_tokens: int
    prefix_cache_miss_tokens: int
    prefix_cache_hit_rate: float | None
    prefix_cache_miss_rate: float | None
    pool_bytes_total: int
    pool_bytes_used: int
    generated_tokens: int
    prefilled_tokens: int
    generated_tps: float
    prefilled_tps: float
    step_time_p50: float | None
    step_time_p99: float | None
    batch_size: float
    instance_id: str
    core_epoch: int
    api_version: str
    build: str
    time: float | None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine as its gateway sees it.

    Attributes:
        engine: its name, as in `engine_ids`.
        reachable: it answers.
        instance_id: name of its present start; "": never reached.
        draining: takes no new requests and will go away.
        api_version: version of its contract.
        build: version and commit of its program.
    """

    engine: str
    reachable: bool
    instance_id: str
    draining: bool
    api_version: str
    build: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers, and what it can do.

    Attributes:
        role: "ENGINE" or "GATEWAY".
        name: its name.
        instance_id: name of this start of it.
        api_version: version of the contract, such as "1.0".
        build: version and commit of the program.
        features: parts of the contract that it honours, such as "session" or "guided".
        start_time: when it was started; None where it did not say.
        devices: devices by name; engines only.
        core_epoch: starts of the core, from 1; engines only.
        draining: takes no new requests and will go away.
        engines: its engines; gateways only.
    """

    role: str
    name: str
    instance_id: str
    api_version: str
    build: str
    features: tuple[str, ...]
    start_time: datetime | None
    devices: tuple[str, ...]
    core_epoch: int
    draining: bool
    engines: tuple[EngineInfo, ...]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The ids of a prompt.

    Attributes:
        ids: as a start would use them.
        rendered_text: the text they were made from: the rendered chat, or the text itself.
        warnings: what looks like a mistake in the prompt.
    """

    ids: list[int]
    rendered_text: str
    warnings: tuple[ConfigWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Detokenized:
    """The text of ids, and the bytes that each id stands for (special tokens as their names)."""

    text: str
    pieces: list[bytes]
