"""The decoder's ops on a CUDA device: csrc's kernels, and cuBLAS for products of bfloat16 weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace_engine.backends.cuda.attention import Attention
from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.flash import PromptAttention
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.mixtures import Mixtures
from headrace_engine.backends.cuda.weights.fused import spanning
from headrace_engine.backends.cuda.weights.quantized import QuantizedProducts, QuantizedWeight
from headrace_engine.backends.cuda.weights.together import Weight, together
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.experts import shared_part
from headrace_engine.backends.torch.ops import scaled
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.ops import Batch
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Dtype, Gate
from headrace_engine.native.abi import GatedRows, GatherRows, LayerNormRows, RmsNorm


class CudaOps:
    """Implements models.ops.Ops over bfloat16 tensors on a device.

    A tensor may be dropped once a kernel that uses it is enqueued: torch reuses its memory in stream order.

    Args:
        spec: the decoder.
        positions: tables of all positions.
        pool: keys and values.
        staging: uploads steps to the device.
        device: the device that holds the tensors.
        products: computes with quantized weights.
        prompts: attention that replaces the kernel where it applies; None: never.
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
        prompts: PromptAttention | None = None,
        adapters: TorchAdapters | None = None,
    ) -> None:
        self._spec = spec
        self._staging = staging
        self._device = device
        self._products = products
        self._attention = Attention(spec, positions, pool, staging, device, prompts)
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
        return torch.nn.functional.linear(x.to(weight.dtype), weight, bias)

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
        return self._attention.append(layer, q, k, v, batch, norms)

    def paged_attention(self, layer: int, q: Tensor, batch: CudaBatch, sinks: Tensor | None = None) -> Tensor:
        """See Ops."""
        return self._attention.attend(layer, q, batch, sinks)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Ops. Gate and up may be slices of one projection."""
        return self._gated(gate, up)

    def activated(self, x: Tensor) -> Tensor:
        """See Ops."""
        return self._gated(x, None)

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        experts: Sequence[Expert[Tensor]],
        shared: Shared[Tensor] | None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """See Ops."""
        assert self._mixtures is not None
        out = self._mixtures.routed(x, scores, experts, correction)
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
