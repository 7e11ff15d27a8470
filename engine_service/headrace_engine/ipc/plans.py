"""Plans: what the front half decides before a core, or a process that writes a model, begins.

A plan is the first message of its process, and does not change while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.config import (
    ActivationQuant,
    ComputeDtype,
    ComputeUnit,
    KvCacheMode,
    ModelFormat,
    RopeScaling,
    Speculation,
    TensorParallelMode,
    WeightQuant,
)

MOST_ROWS = 16
"""Maximum number of rows of a step with drafted ids: with more, a CPU multiplies quantized weights otherwise."""

MOST_DRAFT_TOKENS = 256
"""Maximum number of ids that a draft model computes at once."""


@dataclass(frozen=True, slots=True)
class ProcessorFile:
    """A logits processor by its name, and the file that defines it; "": the launcher of the core provides it."""

    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class SerializePlan:
    """The only message to a process that writes a model in our own format.

    Attributes:
        path: the directory or hub name of the model, already resolved on this host.
        hub_only: the path is a name on a hub, even if a local path of that name exists.
        weight_quant_group_size: weights that share a scale; 0 = one scale per row.
        folder, name: folder and base name of the files.
        skip_if_exists: keep files that were made of the same model in the same way.
    """

    path: str
    folder: str
    name: str
    file_prefix: str = ""
    revision: str = ""
    hub: str = ""
    hub_only: bool = False
    dtype: ComputeDtype = ComputeDtype.AUTO
    weight_quant: WeightQuant = WeightQuant.NONE
    weight_quant_group_size: int = 0
    skip_if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter to load.

    Attributes:
        number: from 1; requests' sequences name it.
        path: its directory or file, already resolved on this host.
        digest: of its content, as `models.adapters` computes it.
        rank: its largest rank.
    """

    number: int
    path: str
    digest: str
    rank: int


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A smaller model, with the same vocabulary, whose ids are drafts.

    Attributes:
        path: its directory or file, already resolved on this host.
        max_length: maximum number of ids of a sequence that it drafts for.
    """

    path: str
    format: ModelFormat
    max_length: int


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The first message to a core: the model, the backend, and every size that the caller chose.

    Attributes:
        path: the directory or file of the model, already resolved on this host.
        backend: name of the runner: "cpu", "torch", "cuda", or "auto": chosen by the device.
        num_threads: compute threads; 0 = physical CPU cores within quota and affinity.
        max_batch: sequences of a step; 0 = the default of the kind of device, which the core fills in.
        max_length: tokens of the longest sequence; 0 = the model's own limit.
        max_prefill_tokens: tokens computed in one step; 0 = as max_batch.
        num_blocks: blocks of the KV pool; 0 = sized from memory.
        num_host_blocks: blocks of the host tier, for what the pool evicts.
        prefix_cache_ttl: seconds after which unused cached blocks are dropped; None = never.
        memory_ratio: share of memory, as in the runtime config; None = the backend's default.
        vocab_size: rows to load of the vocabulary's tables, those that the tokenizer has ids for; 0 = all.
        weight_quant_group_size: weights that share a scale; 0 = one scale per row, None = the backend's default.
        stream_interval: minimum seconds between messages of tokens; outputs of faster steps are coalesced.
        step_target: seconds that a step beside running streams may take; 0: only max_prefill_tokens limits it; None:
            a few times what the streams take alone.
        speculation: source of drafted ids.
        max_drafts: maximum number of drafted ids of a sequence in a step.
        draft: the draft model; None: there is none.
        adapters: to load at the start.
        lora_max_num: adapters that are loaded at once, at most, with numbers from 1 on.
        lora_max_rank: largest rank of an adapter.
        tensor_parallel: number of ranks.
        tensor_parallel_mode: how the ranks share the matrices.
        core_ping_limit: seconds without progress after which a rank is lost.
    """

    path: str
    format: ModelFormat
    file_prefix: str = ""
    backend: str = "auto"
    dtype: ComputeDtype = ComputeDtype.AUTO
    compute_unit: ComputeUnit | None = None
    device_list: tuple[int, ...] = ()
    num_threads: int = 0
    max_batch: int = 32
    max_length: int = 0
    max_prefill_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = 0
    num_host_blocks: int = 0
    kv_cache_mode: KvCacheMode = KvCacheMode.DEFAULT
    enable_prefix_cache: bool = True
    prefix_cache_ttl: float | None = None
    memory_ratio: float | None = None
    rope_scaling: RopeScaling | None = None
    vocab_size: int = 0
    weight_quant: WeightQuant = WeightQuant.NONE
    weight_quant_group_size: int | None = None
    activation_quant: ActivationQuant = ActivationQuant.NONE
    logits_processors: tuple[ProcessorFile, ...] = ()
    stream_interval: float = 0.0
    step_target: float | None = 0.0
    speculation: Speculation = Speculation.OFF
    max_drafts: int = 7
    draft: DraftPlan | None = None
    adapters: tuple[AdapterPlan, ...] = ()
    lora_max_num: int = 0
    lora_max_rank: int = 0
    tensor_parallel: int = 1
    tensor_parallel_mode: TensorParallelMode = TensorParallelMode.EXACT
    core_ping_limit: float = 30.0

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a step: one for each sequence, and one for each drafted id."""
        return self.max_batch if self.speculation is Speculation.OFF else max(self.max_batch, MOST_ROWS)

    def of_draft(self, draft: DraftPlan) -> CorePlan:
        """Return the plan of the runner of the draft model, whose pool has as many blocks."""
        return CorePlan(
            path=draft.path,
            format=draft.format,
            backend=self.backend,
            dtype=self.dtype,
            compute_unit=self.compute_unit,
            device_list=self.device_list,
            num_threads=self.num_threads,
            max_batch=MOST_ROWS,
            max_length=draft.max_length,
            max_prefill_tokens=MOST_DRAFT_TOKENS,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_cache_mode=self.kv_cache_mode,
            memory_ratio=self.memory_ratio,
            vocab_size=self.vocab_size,
        )
