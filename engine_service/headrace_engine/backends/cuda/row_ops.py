"""The decoder's ops where layers multiply codes of eight bits: rows become codes before their products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.cuda.ops import CudaOps, Weight
from headrace_engine.backends.cuda.weights.row_products import CodedRows, CodeProducts, RowCodedWeight, RowProducts
from headrace_engine.native import Dtype, Gate
from headrace_engine.native.abi import GatedRows, RmsNormCodes


class RowCodeOps(CudaOps):
    """CudaOps that give products with a RowCodedWeight codes of their rows. Other products take numbers as ever.

    Args:
        *args: as CudaOps takes them.
        codes: makes and multiplies codes.
    """

    def __init__(self, *args: Any, codes: RowProducts) -> None:
        super().__init__(*args)
        self._codes = codes

    def linear(self, x: Any, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Ops. Rows are numbers, or CodedRows where the weight is one of codes."""
        if not isinstance(weight, RowCodedWeight):
            return super().linear(x, weight, bias)
        rows = x if isinstance(x, CodedRows) else self._codes.coded(x)
        return self._codes.linear(rows, weight, bias)


class FusedRowCodeOps(RowCodeOps):
    """The same, where norms and gates write codes, but for the final norm: what it gives is wanted as numbers.

    Args:
        *args: as CudaOps takes them.
        codes: makes and multiplies codes.
        final_norm: the weight of the final norm.
    """

    def __init__(self, *args: Any, codes: CodeProducts, final_norm: Tensor) -> None:
        super().__init__(*args, codes=codes)
        self._products_of_codes = codes
        self._final_norm = final_norm

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Any:
        """See Ops. Gives CodedRows."""
        return super().rms_norm(x, weight, eps) if weight is self._final_norm else self._normed(x, weight, eps, {})

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Any, Tensor]:
        """See Ops. Gives CodedRows, and numbers."""
        if weight is self._final_norm:
            return super().add_rms_norm(x, residual, weight, eps)
        total = torch.empty_like(x)
        return self._normed(x, weight, eps, {"residual": residual, "residual_out": total}), total

    def silu_mul(self, gate: Tensor, up: Tensor) -> Any:
        """See Ops. Gives CodedRows."""
        out = self._products_of_codes.room(*gate.shape)
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
            activation=Gate.SILU,
            codes=self._codes.kind,
        )
        self._device.launch("gated_rows", args)
        return out

    def _normed(self, x: Tensor, weight: Tensor, eps: float, residuals: dict[str, Tensor]) -> CodedRows:
        out = self._products_of_codes.room(*x.shape)
        tensors = {"x": x, "weight": weight, "out": out.codes, "scales": out.scales, **residuals}
        args = RmsNormCodes(**{name: tensor.data_ptr() for name, tensor in tensors.items()})
        args.rows, args.hidden = x.shape
        args.eps, args.dtype, args.codes = eps, Dtype.BFLOAT16, self._codes.kind
        self._device.launch("rms_norm_codes", args)
        return out
