"""Attention on a CUDA device: keys and values into the pool, and queries over it."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.flash import PromptAttention
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.torch.ops import head_normed
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.models.spec import DecoderSpec, QkNorm
from headrace_engine.native.abi import AppendKv, DecodeAttention, PrefillAttention


class Attention:
    """The ops of CudaOps that read or write the KV pool.

    Args:
        spec: the decoder.
        positions: tables of all positions.
        pool: keys and values.
        staging: uploads steps to the device.
        device: the device that holds the pool.
        prompts: attention that replaces the kernel where it applies; None: never.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        positions: Positions,
        pool: KvPool,
        staging: StepStaging,
        device: Device,
        prompts: PromptAttention | None,
    ) -> None:
        self._spec = spec
        self._positions = positions
        self._pool = pool
        self._staging = staging
        self._device = device
        arrivals = staging.sequences * spec.num_heads
        # Lent to one launch at a time, which leaves zeros behind.
        self._arrived = torch.zeros(arrivals, dtype=torch.int32, device=device.torch)
        self._prompts = prompts

    def append(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: CudaBatch, norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """See Ops.append_kv."""
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

    def attend(self, layer: int, q: Tensor, batch: CudaBatch, sinks: Tensor | None = None) -> Tensor:
        """See Ops.paged_attention.

        Sequences of one row, which come first, take the tasks of decode attention; the rest tiles.
        """
        out = torch.empty_like(q)
        window = self._spec.layers[layer].window or 0
        if batch.single:
            self._decode(layer, q, out, batch, sinks)
        if not batch.layout.several:
            return out
        if self._prompts is not None and self._prompts.takes(batch, sinks):
            self._prompts.attend(layer, q[batch.single :], out[batch.single :], batch)
        else:
            self._prefill(layer, q, out, batch, window, sinks)
        return out

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
        args = PrefillAttention(
            q=q.data_ptr(),
            tables=batch.tables.data_ptr(),
            table_rows=batch.table_rows.data_ptr(),
            firsts=batch.firsts.data_ptr(),
            stored=batch.stored.data_ptr(),
            list=batch.several.data_ptr(),
            out=out.data_ptr(),
            sinks=None if sinks is None else sinks.data_ptr(),
            blocks=self._pool.layer(layer),
            q_stride=q.stride(0),
            sequences=batch.layout.several,
            rows=batch.layout.rows,
            heads=self._spec.num_heads,
            max_blocks=batch.tables.shape[1],
            window=window,
            scale=self._spec.score_scale,
            soft_cap=self._spec.attention_soft_cap,
        )
        self._device.launch("prefill_attention", args)
