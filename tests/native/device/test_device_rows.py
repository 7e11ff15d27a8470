"""Ops on rows of devices: codes of rows, gates, gathered rows."""

import ctypes
import math
from typing import Any

import pytest
import torch
from headrace_engine.native import Code, Dtype, Gate, Native, NativeError
from headrace_engine.native.abi import (
    GatedRows,
    GatherRows,
    LayerNormRows,
    QuantizeRows,
    RmsNormCodes,
    RowCodes,
    ScaledSums,
)
from native.buffers import TORCH, Output
from native.device.device_rows import CODE_TYPES, MOST, Codes, every_code, every_dtype, launch, random, shapes
from torch import Tensor

EPS = 1e-5


def quantize(device: Native, x: Tensor, dtype: Dtype, codes: RowCodes) -> Codes:
    rows, width = x.shape
    out = Codes(rows, width, codes, device.device)
    launch(device, "quantize_rows", QuantizeRows(x=x.data_ptr(), rows=rows, width=width, dtype=dtype, **out.at))
    return out


@every_dtype
@every_code
@shapes
def test_codes_and_scales_are_those_of_float32(
    device: Native, dtype: Dtype, codes: RowCodes, rows: int, width: int
) -> None:
    x = random(rows, width, dtype, device)
    found, scales = quantize(device, x, dtype, codes).numbers()
    wide, most = x.cpu().float(), torch.tensor(MOST[codes])
    largest = wide.abs().amax(1, keepdim=True)
    scaled = wide * (most / largest)
    expected = scaled.round().clamp(-most, most) if codes is RowCodes.INT8 else scaled.to(CODE_TYPES[codes])
    assert torch.equal(found, expected.double())
    assert torch.equal(scales, (largest / most).double())


@every_code
@pytest.mark.parametrize("shift", [1, 3])
def test_rows_need_only_the_alignment_of_their_elements(device: Native, codes: RowCodes, shift: int) -> None:
    x = random(3, 64, Dtype.BFLOAT16, device, shift)
    quantize(device, x, Dtype.BFLOAT16, codes).check(x.cpu().double())


@every_code
def test_a_row_of_zeros_or_next_to_nothing_becomes_zeros(device: Native, codes: RowCodes) -> None:
    x = torch.zeros((3, 40), device=device.device)
    x[1], x[2, 3] = 1e-39, -1e-37
    found, scales = quantize(device, x, Dtype.FLOAT32, codes).numbers()
    assert not found.any()
    assert not scales.any()


@every_code
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_told_by_its_scale(device: Native, codes: RowCodes, bad: float) -> None:
    for place in (0, 39, 99):
        x = random(3, 100, Dtype.FLOAT32, device)
        x[1, place] = bad
        scales = quantize(device, x, Dtype.FLOAT32, codes).scales.tensor.cpu()
        assert scales.isfinite().tolist() == [True, False, True]


@every_dtype
@every_code
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (2, 576), (2, 5000)])
def test_codes_of_a_norm_are_those_of_the_exact_norm(
    device: Native, dtype: Dtype, codes: RowCodes, with_residual: bool, rows: int, width: int
) -> None:
    x, residual = random(rows, width, dtype, device), random(rows, width, dtype, device)
    weight = (torch.rand(width) + 0.5).to(TORCH[dtype]).to(device.device)
    total = Output((rows, width), dtype, device.device)
    out = Codes(rows, width, codes, device.device)
    args = RmsNormCodes(
        x=x.data_ptr(), weight=weight.data_ptr(), rows=rows, hidden=width, eps=EPS, dtype=dtype, **out.at
    )
    if with_residual:
        args.residual, args.residual_out = residual.data_ptr(), total.tensor.data_ptr()
    launch(device, "rms_norm_codes", args)
    taken = x.float() + residual.float() if with_residual else x.float()
    wide = taken.to(TORCH[dtype]).cpu().double()
    if with_residual:
        assert torch.equal(total.written(), wide)
    out.check(wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPS) * weight.cpu().double())


@pytest.mark.parametrize("at", range(4), ids=["x", "weight", "residual", "residual_out"])
def test_t3_norms_need_only_the_alignment_of_elements(device: Native, at: int) -> None:
    shifts = [int(place == at) for place in range(4)]
    x, weight, residual = (random(3, 64, Dtype.BFLOAT16, device, shift) for shift in shifts[:3])
    total = Output((3, 64), Dtype.BFLOAT16, device.device, shifts[3])
    out = Codes(3, 64, RowCodes.INT8, device.device)
    args = RmsNormCodes(
        x=x.data_ptr(), weight=weight.data_ptr(), rows=3, hidden=64, eps=EPS, dtype=Dtype.BFLOAT16, **out.at
    )
    args.residual, args.residual_out = residual.data_ptr(), total.tensor.data_ptr()
    launch(device, "rms_norm_codes", args)
    assert torch.equal(total.written(), (x + residual).cpu().double())


RIGHT: dict[str, tuple[type[ctypes.Structure], dict[str, Any]]] = {
    "quantize_rows": (QuantizeRows, {"x": 4096, "out": 4096, "scales": 4096, "width": 8, "dtype": 2, "codes": 1}),
    "rms_norm_codes": (
        RmsNormCodes,
        {"x": 4096, "weight": 4096, "out": 4096, "scales": 4096, "hidden": 8, "dtype": 2, "codes": 1},
    ),
    "layer_norm_rows": (
        LayerNormRows,
        {"x": 4096, "weight": 4096, "bias": 4096, "out": 4096, "hidden": 8, "eps": 1e-5, "dtype": 2},
    ),
    "gated_rows": (
        GatedRows,
        {"gate": 4096, "up": 4096, "out": 4096, "scales": 4096, "width": 8, "gate_stride": 8, "up_stride": 8}
        | {"dtype": 2, "activation": 1, "codes": 1},
    ),
    "scaled_sums": (
        ScaledSums,
        {"sums": 4096, "row_scales": 4096, "scales": 4096, "bias": 4096, "out": 4096, "width": 8, "dtype": 2},
    ),
    "gather_rows": (GatherRows, {"table": 4096, "ids": 4096, "out": 4096, "width": 8, "count": 9, "dtype": 2}),
}
"""Arguments that nothing is wrong with; no buffer is touched where one is replaced."""

WRONG = [
    ("quantize_rows", "x", 0, Code.NULL_POINTER),
    ("quantize_rows", "x", 4097, Code.MISALIGNED),
    ("quantize_rows", "scales", 4098, Code.MISALIGNED),
    ("quantize_rows", "width", 0, Code.BAD_EXTENT),
    ("quantize_rows", "dtype", 4, Code.UNKNOWN_DTYPE),
    ("quantize_rows", "codes", 0, Code.BAD_CODE),
    ("rms_norm_codes", "residual_out", 4096, Code.NULL_POINTER),
    ("rms_norm_codes", "residual", 4096, Code.NULL_POINTER),
    ("rms_norm_codes", "eps", math.nan, Code.BAD_NUMBER),
    ("rms_norm_codes", "codes", max(RowCodes) + 1, Code.BAD_CODE),
    ("rms_norm_codes", "rows", -1, Code.BAD_COUNT),
    ("layer_norm_rows", "weight", 0, Code.NULL_POINTER),
    ("layer_norm_rows", "bias", 4097, Code.MISALIGNED),
    ("layer_norm_rows", "eps", -1.0, Code.BAD_NUMBER),
    ("layer_norm_rows", "hidden", 0, Code.BAD_EXTENT),
    ("gated_rows", "gate_stride", 7, Code.BAD_SHAPE),
    ("gated_rows", "up_stride", -8, Code.BAD_SHAPE),
    ("gated_rows", "activation", max(Gate) + 1, Code.BAD_CODE),
    ("gated_rows", "scales", 0, Code.NULL_POINTER),
    ("scaled_sums", "bias", 4097, Code.MISALIGNED),
    ("scaled_sums", "row_scales", 0, Code.NULL_POINTER),
    ("scaled_sums", "width", 0, Code.BAD_EXTENT),
    ("gather_rows", "ids", 4097, Code.MISALIGNED),
    ("gather_rows", "count", 0, Code.BAD_EXTENT),
    ("gather_rows", "width", 2**31, Code.BAD_EXTENT),
]
NAMED_INSTEAD = {("rms_norm_codes", "residual_out"): "residual", ("rms_norm_codes", "residual"): "residual_out"}
"""Of two that come together, the error names the one that is missing."""


@pytest.mark.parametrize(("op", "field", "value", "code"), WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(
    device: Native, op: str, field: str, value: Any, code: Code
) -> None:
    record, right = RIGHT[op]
    named = NAMED_INSTEAD.get((op, field), field)
    with pytest.raises(NativeError, match=f"^{op}: {named} = ") as caught:
        launch(device, op, record(**{"rows": 2, **right, field: value}))
    assert caught.value.code is code


def test_a_clamped_gate_without_what_it_multiplies_is_refused(device: Native) -> None:
    record, right = RIGHT["gated_rows"]
    with pytest.raises(NativeError, match=r"^gated_rows: up = ") as caught:
        launch(device, "gated_rows", record(**{**right, "rows": 2, "up": None, "activation": Gate.CLAMPED}))
    assert caught.value.code is Code.NULL_POINTER


@pytest.mark.parametrize("op", RIGHT)
def test_no_rows_is_no_work(device: Native, op: str) -> None:
    record, right = RIGHT[op]
    launch(device, op, record(**{**right, "rows": 0}))
