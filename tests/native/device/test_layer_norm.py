"""LayerNorm of devices, with and without a bias, against torch's in float64."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.native import Dtype, Native
from headrace_engine.native.abi import LayerNormRows
from native.buffers import Output
from native.device.device_rows import every_dtype, launch, random
from torch import Tensor

LIMITS = {Dtype.FLOAT32: 4e-6, Dtype.BFLOAT16: 4e-3, Dtype.FLOAT16: 5e-4}
EPS = 1e-5


def layer_norm(device: Native, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, dtype: Dtype) -> None:
    rows, hidden = x.shape
    address = None if bias is None else bias.data_ptr()
    at = {"x": x.data_ptr(), "weight": weight.data_ptr(), "bias": address, "out": out.data_ptr()}
    launch(device, "layer_norm_rows", LayerNormRows(**at, rows=rows, hidden=hidden, eps=EPS, dtype=dtype))


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = None if bias is None else bias.cpu().double()
    return torch.nn.functional.layer_norm(x.cpu().double(), weight.shape, weight.cpu().double(), wide, EPS)


@every_dtype
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("hidden", [1, 7, 64, 1000, 4096, 8200])
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "shifted"])
def test_each_row_is_normed(device: Native, dtype: Dtype, has_bias: bool, hidden: int, shift: int) -> None:
    """Also where buffers have the alignment of their elements alone."""
    x = random(3, hidden, dtype, device, shift)
    weight, bias = (random(1, hidden, dtype, device, shift)[0] for _ in range(2))
    out = Output((3, hidden), dtype, device.device, shift)
    layer_norm(device, x, weight, bias if has_bias else None, out.tensor, dtype)
    expected = exact(x, weight, bias if has_bias else None)
    error = (out.written() - expected).norm(dim=-1)
    assert (error <= LIMITS[dtype] * expected.norm(dim=-1) + 1e-6).all()


@every_dtype
def test_the_output_may_be_the_input(device: Native, dtype: Dtype) -> None:
    x, (weight, bias) = random(2, 640, dtype, device), (random(1, 640, dtype, device)[0] for _ in range(2))
    expected = exact(x, weight, bias)
    layer_norm(device, x, weight, bias, x, dtype)
    assert ((x.cpu().double() - expected).norm(dim=-1) <= LIMITS[dtype] * expected.norm(dim=-1)).all()
