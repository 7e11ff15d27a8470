"""The runner of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from headrace_engine.backends.extra_outputs import scored_rows
from headrace_engine.backends.processors import NO_PROCESSES, Process
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.device import TORCH_DTYPES
from headrace_engine.backends.torch.kv_pool import KvPool, token_bytes
from headrace_engine.backends.torch.loading import LoadedModel, open_on_device
from headrace_engine.backends.torch.parallel.group import Group, Store, find_store, open_store
from headrace_engine.backends.torch.parallel.ops import RankDecoder, RankOps, follow_step
from headrace_engine.backends.torch.parallel.share import Share, Weight
from headrace_engine.backends.torch.runner import TorchRunner, make_batch
from headrace_engine.backends.torch.workspace import rows_at_once
from headrace_engine.core.ranks import RankRunner
from headrace_engine.core.runner import Progress, SequenceStep
from headrace_engine.errors import Internal
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.weights import read_all, read_tensor


@dataclass(frozen=True, slots=True)
class RankModel(LoadedModel):
    """A rank's share of a model on its device.

    Attributes:
        share: which one.
        parts: its weights by canonical name, in place of `weights`.
        embed: where the rows of the embedding table are.
        groups: all ranks, once they have joined.
    """

    share: Share = field(kw_only=True)
    parts: dict[str, Weight] = field(kw_only=True)
    embed: TensorInfo = field(kw_only=True)
    groups: list[Group] = field(kw_only=True, default_factory=list)

    @property
    def weight_bytes(self) -> int:
        """See LoadedModel."""
        adapters = 0 if self.adapters is None else self.adapters.nbytes
        return sum(part.nbytes for part in self.parts.values()) + self.positions.nbytes + adapters

    @property
    def held(self) -> DecoderSpec:
        """The decoder with the heads whose keys and values the rank holds."""
        return self.share.heads(self.spec)

    @property
    def token_bytes(self) -> int:
        """See LoadedModel."""
        return token_bytes(self.held, self.kv_mode, self.itemsize)

    def pool(self, num_blocks: int, block_size: int) -> KvPool:
        """See LoadedModel."""
        return KvPool(self.held, num_blocks, block_size, self.kv_mode, TORCH_DTYPES[self.dtype], self.device)

    def decoder(self, pool: KvPool) -> RankDecoder:
        """See LoadedModel."""
        if not self.groups:
            raise Internal("a rank computes after join()")
        ops = RankOps(self.spec, self.positions, pool, self.device, self.groups[0], self.share, self.adapters)
        return RankDecoder(self.spec, ops, self.parts, adapts=self.adapters is not None)

    def embedding(self, token_id: int) -> Tensor:
        """Return the embedding of an id, [hidden], as it was loaded; other ranks may hold it."""
        row = replace(self.embed, stored=self.embed.stored.rows(token_id, 1))
        return read_tensor(row, TORCH_DTYPES[self.dtype], self.device)[0]


def load_share(plan: CorePlan, rank: int, progress: Progress) -> RankModel:
    """Load a rank's share of a model; otherwise as `load_model`."""
    opened = open_on_device(plan, rank)
    files, dtype, device = opened.files, opened.dtype, opened.device
    share = Share(rank, plan.tensor_parallel, plan.tensor_parallel_mode)
    parts = read_all(files, progress, lambda info: share.read(info, TORCH_DTYPES[dtype], device))
    return RankModel(
        opened.unit,
        device,
        dtype,
        files.spec,
        {},
        opened.positions,
        opened.num_threads,
        plan.kv_cache_mode,
        TorchAdapters(plan, files.spec, TORCH_DTYPES[dtype], device, share) if plan.lora_max_num else None,
        share=share,
        parts=parts,
        embed=files.tensors["embed"],
    )


class TorchRank(TorchRunner, RankRunner):
    """Runs a rank's share of a decoder with torch on one CPU or CUDA device.

    Args:
        rank: its number; 0 samples.
    """

    _model: RankModel | None

    def __init__(self, plan: CorePlan, rank: int, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        super().__init__(plan, processes)
        self._rank = rank
        self._store: Store | None = None

    def meet(self) -> str:
        """See RankRunner. The place is a port."""
        self._store = open_store(self._plan.tensor_parallel)
        return str(self._store.port)

    def join(self, place: str) -> None:
        """See RankRunner. Returns when all have joined."""
        size = self._plan.tensor_parallel
        store = self._store or find_store(int(place), size)
        model = self._share
        model.groups.append(Group(self._rank, size, store, model.device))

    def follow(self, steps: Sequence[SequenceStep]) -> None:
        """See RankRunner."""
        if not isinstance(self._decoder, RankDecoder):
            raise Internal("follow() before allocate()")
        rows = scored_rows(steps, rows_at_once(self._decoder.vocab_size))
        follow_step(self._decoder, make_batch(steps), rows)

    def close(self) -> None:
        """See Runner."""
        super().close()
        self._store = None

    @property
    def _share(self) -> RankModel:
        if self._model is None:
            raise Internal("the model is not loaded")
        return self._model

    def _load_model(self, progress: Progress) -> LoadedModel:
        return load_share(self._plan, self._rank, progress)

    def _embedding(self) -> Callable[[int], Tensor]:
        return self._share.embedding

    def _device_memory(self) -> tuple[int, int]:
        """See TorchRunner. Ranks on a CPU share its memory."""
        total, free = super()._device_memory()
        sharers = self._plan.tensor_parallel if self._share.device.type == "cpu" else 1
        return total // sharers, free // sharers
