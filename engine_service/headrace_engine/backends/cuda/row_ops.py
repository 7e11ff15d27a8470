"""The decoder's ops for 8-bit products: rows are quantized before they are multiplied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.backends.cuda.weights.row_products import (
    CodeProducts,
    QuantizedRows,
    RowProducts,
    RowQuantizedWeight,
)
from headrace_engine.backends.cuda.weights.together import Weight
from headrace_engine.native import Dtype, Gate
from headrace_engine.native.abi import GatedRows, RmsNormCodes


class RowCodeOps(CudaOps):
    """CudaOps that quantize the rows of products with a RowQuantizedWeight. Other products take bfloat16 rows.

    Args:
        *args: see CudaOps.
        codes: quantizes and multiplies rows.
    """

    def __init__(self, *args: Any, codes: RowProducts) -> None:
        super().__init__(*args)
        self._codes = codes

    def linear(self, x: Any, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Ops. x is bfloat16, or QuantizedRows where the weight is a RowQuantizedWeight."""
        if not isinstance(weight, RowQuantizedWeight):
            return super().linear(x, weight, bias)
        rows = x if isinstance(x, QuantizedRows) else self._codes.quantize(x)
        return self._codes.linear(rows, weight, bias)


class FusedRowCodeOps(RowCodeOps):
    """RowCodeOps whose norms before products, and gates, write quantized rows.

    Args:
        *args: see CudaOps.
        codes: quantizes and multiplies rows.
        feeding: the weights of those norms; others write bfloat16.
    """

    def __init__(self, *args: Any, codes: CodeProducts, feeding: Iterable[Tensor]) -> None:
        super().__init__(*args, codes=codes)
        self._row_products = codes
        self._feeding = frozenset(map(id, feeding))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Any:
        """See Ops. Return QuantizedRows before products."""
        return self._normed(x, weight, eps, {}) if id(weight) in self._feeding else super().rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Any, Tensor]:
        """See Ops. Return QuantizedRows before products, and the sum in bfloat16."""
        if id(weight) not in self._feeding:
            return super().add_rms_norm(x, residual, weight, eps)
        total = torch.empty_like(x)
        return self._normed(x, weight, eps, {"residual": residual, "residual_out": total}), total

    def gated(self, gate: Tensor, up: Tensor) -> Any:
        """See Ops. Return QuantizedRows."""
        out = self._row_products.scratch(*gate.shape)
        args = GatedRows(
            gate=gate.data_ptr(),
            up=up.data_ptr(),
            out=out.codes.data_ptr(),
            scales=out.scales.data_ptr(),
            rows=gate.shape[0],
            width=gate.shape[1],
            gate_stride=gate.stride(0),
            up_stride=up.stride(0),
            dtype=Dtype.BFLOAT16,
            activation=Gate[self._spec.gate],
            codes=self._codes.kind,
        )
        self._device.launch("gated_rows", args)
        return out

    def _normed(self, x: Tensor, weight: Tensor, eps: float, residuals: dict[str, Tensor]) -> QuantizedRows:
        out = self._row_products.scratch(*x.shape)
        tensors = {"x": x, "weight": weight, "out": out.codes, "scales": out.scales, **residuals}
        args = RmsNormCodes(**{name: tensor.data_ptr() for name, tensor in tensors.items()})
        args.rows, args.hidden = x.shape
        args.eps, args.dtype, args.codes = eps, Dtype.BFLOAT16, self._codes.kind
        self._device.launch("rms_norm_codes", args)
        return out
