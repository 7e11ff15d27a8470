"""Buffers that show what an op did not write, and what it should not have written."""

import torch
from headrace_engine.native import Dtype, Native
from torch import Tensor

TORCH = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16}
GUARD = 256


class Output:
    """An output tensor full of NaN between two guards of NaN.

    Args:
        shift: elements by which it misses the alignment of a whole buffer.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Dtype, device: str, shift: int = 0) -> None:
        count = torch.Size(shape).numel()
        self._all = torch.full((GUARD + shift + count + GUARD,), torch.nan, dtype=TORCH[dtype], device=device)
        self._first = GUARD + shift
        self.tensor = self._all[self._first : self._first + count].view(shape)

    def written(self) -> Tensor:
        """What the op wrote, on the CPU in float64, after checking that it left the guards alone."""
        if self._all.is_cuda:
            torch.cuda.synchronize()
        count = self.tensor.numel()
        assert self._all[: self._first].isnan().all(), "an element before the buffer was written"
        assert self._all[self._first + count :].isnan().all(), "an element after the buffer was written"
        return self.tensor.cpu().double()


def shifted(values: Tensor, shift: int) -> Tensor:
    """The same values in a buffer that starts `shift` elements after an aligned address."""
    scratch = torch.empty(values.numel() + shift, dtype=values.dtype, device=values.device)
    return scratch[shift:].view(values.shape).copy_(values)


def stream_of(backend: Native) -> int:
    """The stream that torch works on, for a backend that has streams."""
    return torch.cuda.current_stream().cuda_stream if backend.device == "cuda" else 0
