"""The decoder's ops on a CUDA device: csrc's kernels, and cuBLAS for products of bfloat16 weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.flash import FlashPrefill
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.mixtures import Mixtures
from headrace_engine.backends.cuda.weights.fused import spanning
from headrace_engine.backends.cuda.weights.quantized import QuantizedProducts, QuantizedWeight
from headrace_engine.backends.cuda.weights.together import Weight, together
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.experts import shared_part
from headrace_engine.backends.torch.ops import head_normed, scaled
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.models.decoder import Batch
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.spec import DecoderSpec, QkNorm
from headrace_engine.native import Dtype, Gate
from headrace_engine.native.abi import (
    AppendKv,
    DecodeAttention,
    GatedRows,
    GatherRows,
    LayerNormRows,
    PrefillAttention,
    RmsNorm,
)


class CudaOps:
    """Implements models.decoder.Ops over bfloat16 tensors on a device.

    A tensor may be dropped once a kernel that uses it is enqueued: torch reuses its memory in stream order.

    Args:
        spec: the decoder.
        positions: tables of all positions.
        pool: keys and values.
        staging: uploads steps to the device.
        device: the device that holds the tensors.
        products: computes with quantized weights.
        flash: attention that replaces the kernel where it applies; None: never.
        adapters: their factors; None: rows have none.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        positions: Positions,
        pool: KvPool,
        staging: StepStaging,
        device: Device,
        products: QuantizedProducts,
        flash: FlashPrefill | None = None,
        adapters: TorchAdapters | None = None,
    ) -> None:
        self._spec = spec
        self._positions = positions
        self._pool = pool
        self._staging = staging
        self._device = device
        self._products = products
        arrivals = staging.sequences * spec.num_heads
        self._arrived = torch.zeros(arrivals, dtype=torch.int32, device=device.torch)
        self._flash = flash
        self._adapters = adapters
        self._mixtures = None if spec.experts is None else Mixtures(spec.experts, self.gated)

    def prepare(self, batch: Batch) -> CudaBatch:
        """See Ops. The step must have been passed to `StepStaging.fill`."""
        return self._staging.view(batch)

    def embedding(self, table: Weight, batch: CudaBatch) -> Tensor:
        """See Ops."""
        if isinstance(table, QuantizedWeight):
            return self._products.rows(table, batch.token_ids)
        assert isinstance(table, Tensor), "tables are not RowQuantizedWeights"
        return self.table_rows(table, batch.token_ids)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        out = torch.empty_like(x)
        self._norm(RmsNorm(x=x.data_ptr(), weight=weight.data_ptr(), out=out.data_ptr(), eps=eps), x)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        out, total = torch.empty_like(x), torch.empty_like(x)
        tensors = {"x": x, "residual": residual, "weight": weight, "out": out, "residual_out": total}
        self._norm(RmsNorm(**{name: tensor.data_ptr() for name, tensor in tensors.items()}, eps=eps), x)
        return out, total

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """See Ops."""
        out = torch.empty_like(x)
        args = LayerNormRows(
            x=x.data_ptr(),
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            rows=x.shape[0],
            hidden=x.shape[1],
            eps=eps,
            dtype=Dtype.BFLOAT16,
        )
        self._device.launch("layer_norm_rows", args)
        return out

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Ops."""
        if isinstance(weight, QuantizedWeight):
            return self._products.linear(x, weight, bias)
        assert isinstance(weight, Tensor), "RowQuantizedWeights are multiplied by RowCodeOps"
        return torch.nn.functional.linear(x, weight, bias)

    def linears(self, x: Tensor, projections: Sequence[tuple[Weight, Tensor | None]]) -> Sequence[Tensor]:
        """See Ops. Contiguous weights take one product, whose columns are the results."""
        weights = [weight for weight, _ in projections]
        biases = [bias for _, bias in projections if bias is not None]
        found = together(weights)
        if found is None:
            return [self.linear(x, weight, bias) for weight, bias in projections]
        whole, sizes = found
        out = self.linear(x, whole, spanning(biases) if biases else None)
        return list(out.split(sizes, dim=1))

    def adapted(self, x: Tensor, outs: Sequence[Tensor], names: Sequence[str], batch: CudaBatch) -> Sequence[Tensor]:
        """See Ops. In plain torch, which no captured step does: such a step has no rows with adapters."""
        return outs if self._adapters is None else self._adapters.add(x, outs, names, batch.adapters)

    def append_kv(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: CudaBatch, norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """See Ops."""
        if norms is not None and self._spec.qk_norm is QkNorm.WHOLE:
            q, k = (head_normed(x, weight, self._spec) for x, weight in zip((q, k), norms, strict=True))
            norms = None
        rotated = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        table = self._positions.table(layer)
        args = AppendKv(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            q_norm=norms and norms[0].data_ptr(),
            k_norm=norms and norms[1].data_ptr(),
            cos=table and table.cos.data_ptr(),
            sin=table and table.sin.data_ptr(),
            positions=batch.positions.data_ptr(),
            slots=batch.slots.data_ptr(),
            q_out=rotated.data_ptr(),
            blocks=self._pool.layer(layer),
            q_stride=q.stride(0),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            tokens=len(q),
            heads=self._spec.num_heads,
            rotary_dim=0 if table is None else self._spec.rotary_dim,
            eps=self._spec.norm_eps,
        )
        self._device.launch("append_kv", args)
        return self._positions.scale(rotated, batch.positions)

    def paged_attention(self, layer: int, q: Tensor, batch: CudaBatch, sinks: Tensor | None = None) -> Tensor:
        """See Ops. Sequences of one row, which come first, take the tasks of decode attention; the rest tiles."""
        out = torch.empty_like(q)
        window = self._spec.layers[layer].window or 0
        if batch.single:
            self._decode(layer, q, out, batch, sinks)
        if batch.single == len(batch.stored):
            return out
        plain = not self._spec.attention_soft_cap and sinks is None
        if self._flash is not None and batch.prompts_begin and plain:
            rows, firsts = slice(batch.single, None), batch.prompt_firsts
            slots, longest = batch.slots[rows], batch.longest
            scale = self._spec.score_scale
            out[rows] = self._flash.attend(layer, q[rows], slots, firsts, longest, window, scale)
        else:
            self._prefill(layer, q, out, batch, window, sinks)
        return out

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Ops. Gate and up may be slices of one projection."""
        return self._gated(gate, up)

    def activated(self, x: Tensor) -> Tensor:
        """See Ops."""
        return self._gated(x, None)

    def experts(
        self, x: Tensor, scores: Tensor, experts: Sequence[Expert[Tensor]], shared: Shared[Tensor] | None
    ) -> Tensor:
        """See Ops."""
        assert self._mixtures is not None
        out = self._mixtures.routed(x, scores, experts)
        return out if shared is None else out + shared_part(shared)

    def scaled(self, x: Tensor, scale: float, soft_cap: float) -> Tensor:
        """See Ops."""
        return scaled(x, scale, soft_cap)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """See Ops."""
        return x + y

    def select_rows(self, x: Tensor, batch: CudaBatch) -> Tensor:
        """See Ops."""
        return self.table_rows(x, batch.logits_rows)

    def table_rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return rows of a table by their indices, int32 [rows]."""
        out = torch.empty(len(ids), table.shape[1], dtype=table.dtype, device=table.device)
        args = GatherRows(
            table=table.data_ptr(),
            ids=ids.data_ptr(),
            out=out.data_ptr(),
            rows=len(ids),
            width=table.shape[1],
            count=len(table),
            dtype=Dtype.BFLOAT16,
        )
        self._device.launch("gather_rows", args)
        return out

    def _gated(self, gate: Tensor, up: Tensor | None) -> Tensor:
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        args = GatedRows(
            gate=gate.data_ptr(),
            up=None if up is None else up.data_ptr(),
            out=out.data_ptr(),
            rows=gate.shape[0],
            width=gate.shape[1],
            gate_stride=gate.stride(0),
            up_stride=(gate if up is None else up).stride(0),
            dtype=Dtype.BFLOAT16,
            activation=Gate[self._spec.gate],
        )
        self._device.launch("gated_rows", args)
        return out

    def _norm(self, args: RmsNorm, x: Tensor) -> None:
        args.rows, args.hidden = x.shape
        args.dtype = Dtype.BFLOAT16
        self._device.launch("rms_norm", args)

    def _decode(self, layer: int, q: Tensor, out: Tensor, batch: CudaBatch, sinks: Tensor | None) -> None:
        rows, tasks = batch.single, self._staging.tasks
        parts = sums = None
        if tasks.most_parts > 1:
            shape = (rows, self._spec.num_heads, tasks.most_parts)
            parts = torch.empty(*shape, self._spec.head_dim, dtype=torch.float32, device=q.device)
            sums = torch.empty(*shape, 2, dtype=torch.float32, device=q.device)
        args = DecodeAttention(
            q=q.data_ptr(),
            tables=batch.tables.data_ptr(),
            tasks=batch.tasks.data_ptr(),
            list=batch.lists[tasks.list_of(layer)].data_ptr(),
            out=out.data_ptr(),
            parts=None if parts is None else parts.data_ptr(),
            part_sums=None if sums is None else sums.data_ptr(),
            arrived=self._arrived.data_ptr(),
            sinks=None if sinks is None else sinks.data_ptr(),
            blocks=self._pool.layer(layer),
            q_stride=q.stride(0),
            sequences=rows,
            heads=self._spec.num_heads,
            max_blocks=batch.tables.shape[1],
            most_parts=tasks.most_parts,
            multiprocessors=self._device.multiprocessors,
            scale=self._spec.score_scale,
            soft_cap=self._spec.attention_soft_cap,
        )
        self._device.launch("decode_attention", args)

    def _prefill(self, layer: int, q: Tensor, out: Tensor, batch: CudaBatch, window: int, sinks: Tensor | None) -> None:
        first = batch.single
        args = PrefillAttention(
            q=q.data_ptr(),
            tables=batch.tables.data_ptr(),
            table_rows=batch.table_rows[first:].data_ptr(),
            firsts=batch.firsts[first:].data_ptr(),
            stored=batch.stored[first:].data_ptr(),
            out=out.data_ptr(),
            sinks=None if sinks is None else sinks.data_ptr(),
            blocks=self._pool.layer(layer),
            q_stride=q.stride(0),
            sequences=len(batch.stored) - first,
            longest=batch.longest,
            heads=self._spec.num_heads,
            max_blocks=batch.tables.shape[1],
            window=window,
            scale=self._spec.score_scale,
            soft_cap=self._spec.attention_soft_cap,
        )
        self._device.launch("prefill_attention", args)
