"""Ops on rows of devices: codes of rows, gates, gathered rows."""

import ctypes
import math
from typing import Any

import pytest
import torch
from headrace_engine.native import Code, Dtype, Gate, Native, NativeError
from headrace_engine.native.abi import GatedRows, GatherRows, QuantizeRows, RmsNormCodes, RowCodes, ScaledSums
from native.buffers import TORCH, Output, shifted, stream_of
from torch import Tensor

EPS = 1e-5
SHAPES = [(1, 1), (3, 7), (2, 64), (5, 576), (2, 1001), (2, 5000)]
MOST = {RowCodes.INT8: 127.0, RowCodes.FP8: 448.0}
CODE_TYPES = {RowCodes.INT8: torch.int8, RowCodes.FP8: torch.float8_e4m3fn}
LIMITS = {Dtype.FLOAT32: 2e-6, Dtype.BFLOAT16: 4e-3, Dtype.FLOAT16: 5e-4}

every_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name.lower())
every_code = pytest.mark.parametrize("codes", list(RowCodes), ids=lambda codes: codes.name.lower())
every_gate = pytest.mark.parametrize("gate", list(Gate), ids=lambda gate: gate.name.lower())
shapes = pytest.mark.parametrize(("rows", "width"), SHAPES)


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


def random(rows: int, width: int, dtype: Dtype, device: Native, shift: int = 0) -> Tensor:
    values = torch.randn((rows, width)).to(TORCH[dtype]).to(device.device)
    return shifted(values, shift) if shift else values


def launch(device: Native, op: str, args: ctypes.Structure) -> None:
    device.launch(op, args, stream_of(device))


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


def exact_gate(gate: Gate, x: Tensor) -> Tensor:
    approximate = "tanh" if gate is Gate.GELU_TANH else "none"
    return x * torch.sigmoid(x) if gate is Gate.SILU else torch.nn.functional.gelu(x, approximate=approximate)


def gated(device: Native, gate: Gate, x: Tensor, up: Tensor, dtype: Dtype, **out: int) -> None:
    args = GatedRows(
        gate=x.data_ptr(),
        up=up.data_ptr(),
        rows=len(x),
        width=x.shape[1],
        gate_stride=x.stride(0),
        up_stride=up.stride(0),
        dtype=dtype,
        activation=gate,
        **out,
    )
    launch(device, "gated_rows", args)


@every_dtype
@every_gate
@shapes
def test_gates_each_entry_of_slices(device: Native, dtype: Dtype, gate: Gate, rows: int, width: int) -> None:
    """The two are slices of one projection."""
    both = random(rows, 2 * width, dtype, device) * 3
    x, up = both[:, :width], both[:, width:]
    out = Output((rows, width), dtype, device.device)
    gated(device, gate, x, up, dtype, out=out.tensor.data_ptr())
    exact = exact_gate(gate, x.cpu().double()) * up.cpu().double()
    assert ((out.written() - exact).abs() <= LIMITS[dtype] * exact.abs() + 1e-5).all()


@every_gate
@every_code
@pytest.mark.parametrize(("rows", "width"), [(2, 7), (3, 576)])
def test_codes_of_gated_rows_are_those_of_the_exact_ones(
    device: Native, gate: Gate, codes: RowCodes, rows: int, width: int
) -> None:
    x, up = (random(rows, width, Dtype.BFLOAT16, device) for _ in range(2))
    out = Codes(rows, width, codes, device.device)
    gated(device, gate, x, up, Dtype.BFLOAT16, **out.at)
    out.check(exact_gate(gate, x.cpu().double()) * up.cpu().double())


@pytest.mark.parametrize("shifts", [(1, 0, 0), (0, 3, 0), (0, 0, 1)], ids=["gate", "up", "out"])
def test_t3_gates_need_only_the_alignment_of_elements(device: Native, shifts: tuple[int, int, int]) -> None:
    gate_shift, up_shift, out_shift = shifts
    x, up = (random(3, 64, Dtype.BFLOAT16, device, shift) for shift in (gate_shift, up_shift))
    out = Output((3, 64), Dtype.BFLOAT16, device.device, out_shift)
    gated(device, Gate.SILU, x, up, Dtype.BFLOAT16, out=out.tensor.data_ptr())
    exact = exact_gate(Gate.SILU, x.cpu().double()) * up.cpu().double()
    assert ((out.written() - exact).abs() <= LIMITS[Dtype.BFLOAT16] * exact.abs() + 1e-5).all()
    if out_shift:
        return
    for kind in RowCodes:
        codes = Codes(3, 64, kind, device.device)
        gated(device, Gate.SILU, x, up, Dtype.BFLOAT16, **codes.at)
        codes.check(exact)


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


@every_gate
def test_gates_of_large_numbers_stay_finite(device: Native, gate: Gate) -> None:
    x = torch.tensor([[-3e38, -200.0, -90.0, 0.0, 90.0, 3e38]], device=device.device)
    up = torch.ones_like(x)
    out = Output((1, 6), Dtype.FLOAT32, device.device)
    gated(device, gate, x, up, Dtype.FLOAT32, out=out.tensor.data_ptr())
    assert torch.equal(out.written(), x.cpu().double().clamp(min=0) + 0.0)


@every_dtype
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (2, 64), (5, 1028), (2, 5000)])
def test_sums_of_codes_become_numbers(device: Native, dtype: Dtype, with_bias: bool, rows: int, width: int) -> None:
    sums = torch.randint(-(2**27), 2**27, (rows, width), dtype=torch.int32).to(device.device)
    row_scales, scales = torch.rand(rows) * 1e-4, torch.rand(width) * 1e-4
    bias = random(1, width, dtype, device)
    here = row_scales.to(device.device), scales.to(device.device)
    out = Output((rows, width), dtype, device.device)
    args = ScaledSums(
        sums=sums.data_ptr(),
        row_scales=here[0].data_ptr(),
        scales=here[1].data_ptr(),
        bias=bias.data_ptr() if with_bias else None,
        out=out.tensor.data_ptr(),
        rows=rows,
        width=width,
        dtype=dtype,
    )
    launch(device, "scaled_sums", args)
    exact = sums.cpu().double() * row_scales.double().unsqueeze(1) * scales.double()
    added = bias.cpu().double() if with_bias else torch.zeros(1, width, dtype=torch.float64)
    limit = LIMITS[dtype] * (exact + added).abs() + 1e-6 * (exact.abs() + added.abs())
    assert ((out.written() - exact - added).abs() <= limit + 1e-7).all()


@every_dtype
@pytest.mark.parametrize("width", [1, 7, 64, 577, 3000])
def test_gathers_rows_and_gives_nan_for_ids_that_are_not_there(device: Native, dtype: Dtype, width: int) -> None:
    table = random(9, width, dtype, device)
    ids = torch.tensor([8, 0, 3, 3, -1, 9, 2**31 - 1, 8], dtype=torch.int32, device=device.device)
    out = Output((8, width), dtype, device.device)
    args = GatherRows(
        table=table.data_ptr(), ids=ids.data_ptr(), out=out.tensor.data_ptr(), rows=8, width=width, count=9, dtype=dtype
    )
    launch(device, "gather_rows", args)
    found, right = out.written(), [0, 1, 2, 3, 7]
    assert torch.equal(found[right], table.cpu()[ids.cpu()[right].long()].double())
    assert found[4:7].isnan().all()


RIGHT: dict[str, tuple[type[ctypes.Structure], dict[str, Any]]] = {
    "quantize_rows": (QuantizeRows, {"x": 4096, "out": 4096, "scales": 4096, "width": 8, "dtype": 2, "codes": 1}),
    "rms_norm_codes": (
        RmsNormCodes,
        {"x": 4096, "weight": 4096, "out": 4096, "scales": 4096, "hidden": 8, "dtype": 2, "codes": 1},
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
    ("rms_norm_codes", "codes", 3, Code.BAD_CODE),
    ("rms_norm_codes", "rows", -1, Code.BAD_COUNT),
    ("gated_rows", "gate_stride", 7, Code.BAD_SHAPE),
    ("gated_rows", "up_stride", -8, Code.BAD_SHAPE),
    ("gated_rows", "activation", 4, Code.BAD_CODE),
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


@pytest.mark.parametrize("op", RIGHT)
def test_no_rows_is_no_work(device: Native, op: str) -> None:
    record, right = RIGHT[op]
    launch(device, op, record(**{**right, "rows": 0}))
