"""Replaces kernels by plain torch, by name, to find the kernel that computes a wrong result."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch
from headrace_engine.backends.cuda.device.flash import FLASH
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.backends.cuda.plain_pool import plain_entries
from headrace_engine.backends.torch.attention import attention_of
from headrace_engine.backends.torch.ops import normed
from headrace_engine.backends.torch.rope import RotaryTable
from headrace_engine.environment import PLAIN_VARIABLE, Environment, plain_op_names
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import DecoderSpec

_METHODS: Mapping[str, tuple[str, ...]] = {
    "rms_norm": ("rms_norm", "add_rms_norm"),
    "gated_rows": ("silu_mul",),
    "gather_rows": ("table_rows",),
    "append_kv": ("rotate", "append_kv"),
    "attention": ("paged_attention",),
    "coded_linear": (),
    "row_codes": (),
    FLASH: (),
    "sample_rows": (),
}
"""Methods of PlainOps that replace an op, by its name. The last four are replaced where they are called."""

NOT_CAPTURED = frozenset(("attention", "sample_rows"))
"""Ops that wait for the host in plain torch, and thus rule out capturing."""


def plain_ops(environment: Environment = os.environ) -> frozenset[str]:
    """Return the ops that the environment names.

    Raises:
        InvalidArgument: a name is unknown.
    """
    names = plain_op_names(environment)
    for name in names:
        if name not in _METHODS:
            text = f'= "{name}" in the environment is not an op; allowed: {", ".join(_METHODS)}'
            raise InvalidArgument.field(PLAIN_VARIABLE, text)
    return frozenset(names)


def take_plain(ops: CudaOps, plain: PlainOps, names: Collection[str]) -> None:
    """Replace ops that launch kernels by plain ones."""
    for name in names:
        for method in _METHODS[name]:
            setattr(ops, method, getattr(plain, method))


class PlainOps:
    """Torch implementations of some of CudaOps' methods.

    Args:
        spec: the decoder.
        rotary: tables of all positions.
        pool: keys and values in the layout of the kernels.
    """

    def __init__(self, spec: DecoderSpec, rotary: RotaryTable, pool: KvPool) -> None:
        self._head_dim = spec.head_dim
        self._block_size = pool.shape.block_size
        self._rotary = rotary
        self._layers = [plain_entries(layer, pool.shape) for layer in pool.tensors]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return normed(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x + residual
        return normed(total, weight, eps), total

    def rotate(self, q: Tensor, k: Tensor, batch: CudaBatch) -> tuple[Tensor, Tensor]:
        """See Ops."""
        q, k = (self._rotary.rotate(self._heads(x), batch.positions) for x in (q, k))
        keys, _ = self._layers[0]
        return keys.queries(q.float()).to(q.dtype).flatten(1), k.flatten(1)

    def append_kv(self, layer: int, k: Tensor, v: Tensor, batch: CudaBatch) -> None:
        """See Ops."""
        blocks, offsets = batch.slots // self._block_size, batch.slots % self._block_size
        for entries, rows in zip(self._layers[layer], (k, v), strict=True):
            entries.put(blocks, offsets, self._heads(rows))

    def paged_attention(self, layer: int, q: Tensor, batch: CudaBatch, window: int | None) -> Tensor:
        """See Ops. `rotate` has prepared the queries."""
        keys, values = self._layers[layer]
        scaled = self._heads(q).float() / math.sqrt(self._head_dim)
        return attention_of(scaled, keys, values, batch.plain, self._block_size, window).flatten(1).to(q.dtype)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Ops."""
        return torch.nn.functional.silu(gate) * up

    def table_rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """See CudaOps."""
        return table[ids]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self._head_dim)
