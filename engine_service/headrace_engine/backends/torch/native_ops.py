"""The torch backend's ops with the native core's norms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace_engine.backends.torch.kv_pool import KvPool
from headrace_engine.backends.torch.ops import TorchOps
from headrace_engine.backends.torch.rope import RotaryTable
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Native, dtype_of, pointer


class NativeTorchOps(TorchOps):
    """TorchOps whose RMSNorm, with and without residual, is csrc's.

    Args:
        spec, rotary, pool, device: see TorchOps.
        native: the library for the device.
    """

    def __init__(
        self, spec: DecoderSpec, rotary: RotaryTable, pool: KvPool, device: torch.device, native: Native
    ) -> None:
        super().__init__(spec, rotary, pool, device)
        self._native = native

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        x, out = x.contiguous(), torch.empty_like(x)
        rows, hidden = x.shape
        places = self._places(out=out, x=x, weight=weight)
        self._native.rms_norm(**places, rows=rows, hidden=hidden, eps=eps, dtype=dtype_of(x), stream=self._stream())
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        rows, hidden = x.shape
        places = self._places(out=out, residual_out=total, x=x, residual=residual, weight=weight)
        self._native.add_rms_norm(**places, rows=rows, hidden=hidden, eps=eps, dtype=dtype_of(x), stream=self._stream())
        return out, total

    def _places(self, *, out: Tensor, **tensors: Tensor) -> Mapping[str, int]:
        """Addresses by name; all tensors are of the type of `out`."""
        named = {"out": out, **tensors}
        return {name: pointer(tensor, dtype_of(out), self._native.device) for name, tensor in named.items()}

    def _stream(self) -> int:
        """The stream that torch enqueues on."""
        return torch.cuda.current_stream(self._device).cuda_stream if self._native.device == "cuda" else 0
