"""Replaces kernels by plain torch, by name, to find the kernel that computes a wrong result."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch
from headrace_engine.backends.cuda.device.flash import FLASH
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.backends.cuda.plain_pool import plain_entries
from headrace_engine.backends.torch.attention import Scores, attention_of
from headrace_engine.backends.torch.ops import activated, gated, head_normed, layer_normed, normed
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.environment import PLAIN_VARIABLE, Environment, plain_op_names
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import DecoderSpec

_METHODS: Mapping[str, tuple[str, ...]] = {
    "rms_norm": ("rms_norm", "add_rms_norm"),
    "layer_norm": ("layer_norm",),
    "gated_rows": ("gated", "activated"),
    "gather_rows": ("table_rows",),
    "append_kv": ("append_kv",),
    "attention": ("paged_attention",),
    "quantized_linear": (),
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
        positions: tables of all positions.
        pool: keys and values in the layout of the kernels.
    """

    def __init__(self, spec: DecoderSpec, positions: Positions, pool: KvPool) -> None:
        self._spec = spec
        self._block_size = pool.shape.block_size
        self._positions = positions
        self._layers = [plain_entries(layer, pool.shape) for layer in pool.tensors]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return normed(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x + residual
        return normed(total, weight, eps), total

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """See Ops."""
        return layer_normed(x, weight, bias, eps)

    def append_kv(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: CudaBatch, norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """See Ops."""
        if norms is not None:
            q, k = (head_normed(x, weight, self._spec) for x, weight in zip((q, k), norms, strict=True))
        q, k = (self._positions.rotate(layer, self._heads(x), batch.positions) for x in (q, k))
        keys, values = self._layers[layer]
        blocks, offsets = batch.slots // self._block_size, batch.slots % self._block_size
        keys.put(blocks, offsets, k)
        values.put(blocks, offsets, self._heads(v))
        return self._positions.scale(keys.queries(q.float()).to(q.dtype).flatten(1), batch.positions)

    def paged_attention(self, layer: int, q: Tensor, batch: CudaBatch, sinks: Tensor | None = None) -> Tensor:
        """See Ops. `append_kv` has prepared the queries."""
        keys, values = self._layers[layer]
        window = self._spec.layers[layer].window
        scores = Scores(self._spec.score_scale, self._spec.attention_soft_cap, window, sinks)
        scaled = self._heads(q).float() * scores.scale
        return attention_of(scaled, keys, values, batch.plain, self._block_size, scores).flatten(1).to(q.dtype)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Ops."""
        return gated(self._spec.gate, gate, up)

    def activated(self, x: Tensor) -> Tensor:
        """See Ops."""
        return activated(self._spec.gate, x)

    def table_rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """See CudaOps."""
        return table[ids]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self._spec.head_dim)
