"""Rows of devices: random ones, and their codes."""

import ctypes
import math

import pytest
import torch
from headrace_engine.native import Dtype, Native
from headrace_engine.native.abi import RowCodes
from native.buffers import TORCH, Output, shifted, stream_of
from torch import Tensor

MOST = {RowCodes.INT8: 127.0, RowCodes.FP8: 448.0}
CODE_TYPES = {RowCodes.INT8: torch.int8, RowCodes.FP8: torch.float8_e4m3fn}


class Codes:
    """Room for the codes of rows, full of what no op writes by chance."""

    def __init__(self, rows: int, width: int, codes: RowCodes, device: str) -> None:
        self.scales = Output((rows,), Dtype.FLOAT32, device)
        self._bytes = torch.full((rows * width + 256,), 0x80, dtype=torch.uint8, device=device)
        self._shape, self._codes = (rows, width), codes

    @property
    def at(self) -> dict[str, int]:
        return {"out": self._bytes.data_ptr(), "scales": self.scales.tensor.data_ptr(), "codes": self._codes}

    def numbers(self) -> tuple[Tensor, Tensor]:
        """The codes as float64 [rows, width], and the scales [rows, 1]."""
        scales = self.scales.written().unsqueeze(1)
        count = math.prod(self._shape)
        assert (self._bytes[count:] == 0x80).all(), "bytes after the codes were written"
        codes = self._bytes[:count].view(CODE_TYPES[self._codes]).view(self._shape)
        return codes.cpu().double(), scales

    def check(self, exact: Tensor) -> None:
        """The codes are those of float64 numbers, but for what rounding to the nearest may move."""
        codes, scales = self.numbers()
        most = MOST[self._codes]
        largest = exact.abs().amax(1, keepdim=True)
        torch.testing.assert_close(scales * most, largest, rtol=1e-5, atol=0)
        # Half of the distance between neighbouring codes, and float32's own error.
        steps = torch.full_like(exact, 0.5) if self._codes is RowCodes.INT8 else half_steps(exact / scales)
        assert ((codes * scales - exact).abs() <= steps * scales + 1e-5 * largest).all()


def half_steps(codes: Tensor) -> Tensor:
    """Half of the distance between the neighbours of e4m3 numbers."""
    exponent = codes.abs().clamp(min=2.0**-6).log2().floor()
    return 2.0 ** (exponent - 4)


SHAPES = [(1, 1), (3, 7), (2, 64), (5, 576), (2, 1001), (2, 5000)]
every_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name.lower())
every_code = pytest.mark.parametrize("codes", list(RowCodes), ids=lambda codes: codes.name.lower())
shapes = pytest.mark.parametrize(("rows", "width"), SHAPES)


def random(rows: int, width: int, dtype: Dtype, device: Native, shift: int = 0) -> Tensor:
    values = torch.randn((rows, width)).to(TORCH[dtype]).to(device.device)
    return shifted(values, shift) if shift else values


def launch(device: Native, op: str, args: ctypes.Structure) -> None:
    device.launch(op, args, stream_of(device))
