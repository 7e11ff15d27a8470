"""Attention of prompts by FlashInfer, which reads keys and values where they are, in the blocks of the pool."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, cycle
from typing import Any, Protocol

import torch
from headrace_proto.pure.faults import is_fault
from torch import Tensor

from headrace_engine.backends.cuda.device.flash import PromptBatch
from headrace_engine.backends.cuda.device.in_flight import DEPTH
from headrace_engine.backends.cuda.device.pool import KvPool, entries_of
from headrace_engine.environment import ATTENTION_VARIABLE, FLASHINFER
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.ops import Extent
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Kv

HEAD_DIMS = (64, 128, 256)
"""Head dimensions that FlashInfer has kernels for, of those of this backend."""

WORKSPACE_BYTES = 128 << 20
"""Memory for parts of its results; all wrappers share it, as their work is done in order."""
_WRAPPER_BYTES = 9 << 20
"""Memory that a wrapper allocates for itself, rounded up."""

_LAYOUT = "HND"
"""Name of the pool's layout: [blocks, 2, kv_heads, block_size, head_dim]."""


class PagedAttention(Protocol):
    """FlashInfer's BatchPrefillWithPagedKVCacheWrapper, as far as it is used: causal attention over pages."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> object:
        """Take a step's rows; the tensors are on the host, int32.

        Args:
            qo_indptr: first row of each sequence, then the number of rows.
            paged_kv_indptr: first entry of each sequence in `paged_kv_indices`, then their number.
            paged_kv_indices: pages of the sequences, one after the other.
            paged_kv_last_page_len: tokens in the last page of each sequence.
            window_left: number of positions before its own that a row attends to; -1: all.
            logits_soft_cap: 0: none.
        """

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor) -> object:
        """Compute the planned rows of a layer into `out`, which has the shape of q, [rows, heads, head_dim].

        Args:
            paged_kv_cache: [pages, 2, kv_heads, page_size, head_dim]; the last rows of a sequence are its last tokens.
        """


class PagedMaker(Protocol):
    """Makes such wrappers on a device."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device of all that were made."""

    def make(self) -> PagedAttention:
        """Return a new one."""


class FlashInfer:
    """The installed FlashInfer.

    Args:
        device: where it computes.

    Raises:
        InvalidArgument: it cannot be imported, or lacks parameters.
    """

    def __init__(self, device: torch.device) -> None:
        self._kind = _wrapper()
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._made = 0

    @property
    def nbytes(self) -> int:
        """See PagedMaker."""
        return WORKSPACE_BYTES + self._made * _WRAPPER_BYTES

    def make(self) -> PagedAttention:
        """See PagedMaker."""
        self._made += 1
        made: PagedAttention = self._kind(self._workspace, _LAYOUT)
        return made


def _wrapper() -> Any:
    asked = f'= "{FLASHINFER}" in the environment'
    try:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper
    except BaseException as error:  # Its import loads libraries, and may build some.
        if not is_fault(error):
            raise
        text = f"{asked}, but flashinfer cannot be imported ({error}): pip install headrace-engine[flashinfer]"
        raise InvalidArgument.field(ATTENTION_VARIABLE, text) from error
    for method in ("plan", "run"):
        if missing := _parameters(PagedAttention, method) - _parameters(Wrapper, method):
            text = f"{asked}, but {method}() of the installed flashinfer has no {', '.join(sorted(missing))}: update it"
            raise InvalidArgument.field(ATTENTION_VARIABLE, text)
    return Wrapper


def _parameters(kind: Any, method: str) -> set[str]:
    return set(inspect.signature(getattr(kind, method)).parameters)


class PagedPrefill:
    """Attention of all prompts of a step, whose earlier tokens may be in the pool.

    Args:
        maker: makes wrappers.
        pool: keys and values, as numbers.
        spec: the decoder.
    """

    def __init__(self, maker: PagedMaker, pool: KvPool, spec: DecoderSpec) -> None:
        self._layers = entries_of(pool)
        self._spec = spec
        self._block_size = pool.shape.block_size
        # A wrapper's plan is copied from host memory of its own when the device gets there, so steps in flight have
        # one each.
        windows = sorted({layer.window or 0 for layer in spec.layers})
        self._wrappers: dict[int, Iterator[PagedAttention]] = {
            window: cycle([maker.make() for _ in range(DEPTH)]) for window in windows
        }
        self._planned: dict[int, tuple[PromptBatch, PagedAttention]] = {}

    def takes(self, batch: PromptBatch, sinks: Tensor | None) -> bool:
        """See PromptAttention."""
        return sinks is None

    def attend(self, layer: int, q: Tensor, out: Tensor, batch: PromptBatch) -> None:
        """See PromptAttention."""
        heads = (self._spec.num_heads, self._spec.head_dim)
        wrapper = self._wrapper(self._spec.layers[layer].window or 0, batch)
        wrapper.run(q.unflatten(1, heads), self._layers[layer], out=out.unflatten(1, heads))

    def _wrapper(self, window: int, batch: PromptBatch) -> PagedAttention:
        """Return the wrapper that has the plan of a step; layers with the same window share it."""
        planned = self._planned.get(window)
        if planned is not None and planned[0] is batch:
            return planned[1]
        wrapper, spec = next(self._wrappers[window]), self._spec
        wrapper.plan(
            *_paged(batch.prompts, self._block_size),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            self._block_size,
            causal=True,
            sm_scale=spec.score_scale,
            window_left=window - 1 if window else -1,
            logits_soft_cap=spec.attention_soft_cap,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )
        self._planned[window] = batch, wrapper
        return wrapper


def why_not_paged(spec: DecoderSpec, kv: Kv) -> str:
    """Return why FlashInfer computes no attention of a decoder; "" if it does."""
    if kv != Kv.BFLOAT16:
        return "keys and values are codes"
    return "" if spec.head_dim in HEAD_DIMS else f"heads have {spec.head_dim} entries"


def _paged(prompts: Sequence[Extent], block_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the first four arguments of `plan` for the rows of sequences."""
    counts = [-(-each.context // block_size) for each in prompts]
    used = (each.blocks[:count] for each, count in zip(prompts, counts, strict=True))
    return (
        _numbers(accumulate((each.length for each in prompts), initial=0)),
        _numbers(accumulate(counts, initial=0)),
        _numbers(chain.from_iterable(used)),
        _numbers((each.context - 1) % block_size + 1 for each in prompts),
    )


def _numbers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
