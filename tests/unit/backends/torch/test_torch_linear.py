"""Matrix products: right, and the same bits for a row whatever stands around it."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.backends.torch.linear import ROW_TILE, linear

SHAPES = [(64, 64), (576, 1536), (1536, 576), (128, 384), (2048, 512)]


def matrices(inputs, outputs, rows=3 * ROW_TILE + 5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=generator)
    return x, torch.randn(outputs, inputs, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_float64(shape):
    x, weight = matrices(*shape)
    bias = torch.arange(shape[1]).float()
    expected = x.double() @ weight.double().T + bias
    assert (linear(x, weight, bias) - expected).abs().max() < 1e-5 * shape[0] ** 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_batch_and_at_any_place(shape):
    x, weight = matrices(*shape)
    whole = linear(x, weight)
    for rows in (1, 2, ROW_TILE - 1, ROW_TILE, ROW_TILE + 1, len(x) - 1):
        assert torch.equal(linear(x[:rows], weight), whole[:rows])
        assert torch.equal(linear(x[-rows:], weight), whole[-rows:])


def test_no_rows_give_no_rows():
    x, weight = matrices(8, 6, rows=0)
    assert linear(x, weight).shape == (0, 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_type(dtype):
    x, weight = (tensor.to(dtype) for tensor in matrices(64, 32))
    product = linear(x, weight)
    assert product.dtype == dtype
    torch.testing.assert_close(product.double(), x.double() @ weight.double().T, rtol=1e-2, atol=1e-1)


def test_nan_in_one_row_touches_no_other():
    x, weight = matrices(64, 32)
    whole = linear(x, weight)
    x[7] = torch.nan
    broken = linear(x, weight)
    assert broken[7].isnan().all()
    assert torch.equal(broken[:7], whole[:7])
    assert torch.equal(broken[8:], whole[8:])
