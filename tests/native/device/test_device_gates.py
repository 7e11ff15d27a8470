"""Gates, sums and gathered rows of devices."""

import pytest
import torch
from headrace_engine.native import Dtype, Gate, Native
from headrace_engine.native.abi import GatedRows, GatherRows, RowCodes, ScaledSums
from native.buffers import Output, shifted
from native.device.device_rows import Codes, every_code, every_dtype, launch, random, shapes
from torch import Tensor

LIMITS = {Dtype.FLOAT32: 2e-6, Dtype.BFLOAT16: 4e-3, Dtype.FLOAT16: 5e-4}

every_gate = pytest.mark.parametrize("gate", list(Gate), ids=lambda gate: gate.name.lower())


def exact_gate(gate: Gate, x: Tensor, up: Tensor) -> Tensor:
    """In float64."""
    x, up = x.cpu().double(), up.cpu().double()
    if gate is Gate.CLAMPED:
        low = x.clamp(max=7)
        return low * torch.sigmoid(1.702 * low) * (1 + up.clamp(-7, 7))
    approximate = "tanh" if gate is Gate.GELU_TANH else "none"
    return up * (x * torch.sigmoid(x) if gate is Gate.SILU else torch.nn.functional.gelu(x, approximate=approximate))


def gated(device: Native, gate: Gate, x: Tensor, up: Tensor | None, dtype: Dtype, **out: int) -> None:
    args = GatedRows(
        gate=x.data_ptr(),
        up=None if up is None else up.data_ptr(),
        rows=len(x),
        width=x.shape[1],
        gate_stride=x.stride(0),
        up_stride=(x if up is None else up).stride(0),
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
    exact = exact_gate(gate, x, up)
    assert ((out.written() - exact).abs() <= LIMITS[dtype] * exact.abs() + 1e-5).all()


@every_dtype
@pytest.mark.parametrize("gate", [gate for gate in Gate if gate is not Gate.CLAMPED], ids=lambda gate: gate.name)
@shapes
def test_activates_entries_of_a_slice(device: Native, dtype: Dtype, gate: Gate, rows: int, width: int) -> None:
    """Without what a gate multiplies."""
    x = (random(rows, 2 * width, dtype, device) * 3)[:, :width]
    out = Output((rows, width), dtype, device.device)
    gated(device, gate, x, None, dtype, out=out.tensor.data_ptr())
    exact = exact_gate(gate, x, torch.ones_like(x))
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
    out.check(exact_gate(gate, x, up))


@pytest.mark.parametrize("shifts", [(1, 0, 0), (0, 3, 0), (0, 0, 1)], ids=["gate", "up", "out"])
def test_t3_gates_need_only_the_alignment_of_elements(device: Native, shifts: tuple[int, int, int]) -> None:
    gate_shift, up_shift, out_shift = shifts
    x, up = (random(3, 64, Dtype.BFLOAT16, device, shift) for shift in (gate_shift, up_shift))
    out = Output((3, 64), Dtype.BFLOAT16, device.device, out_shift)
    gated(device, Gate.SILU, x, up, Dtype.BFLOAT16, out=out.tensor.data_ptr())
    exact = exact_gate(Gate.SILU, x, up)
    assert ((out.written() - exact).abs() <= LIMITS[Dtype.BFLOAT16] * exact.abs() + 1e-5).all()
    if out_shift:
        return
    for kind in RowCodes:
        codes = Codes(3, 64, kind, device.device)
        gated(device, Gate.SILU, x, up, Dtype.BFLOAT16, **codes.at)
        codes.check(exact)


def test_gates_of_any_stride_are_read_where_they_lie(device: Native) -> None:
    """Rows of whole packs that begin between packs."""
    x, up = random(3, 67, Dtype.BFLOAT16, device)[:, :64], random(3, 71, Dtype.BFLOAT16, device)[:, :64]
    out = Output((3, 64), Dtype.BFLOAT16, device.device)
    gated(device, Gate.SILU, x, up, Dtype.BFLOAT16, out=out.tensor.data_ptr())
    exact = exact_gate(Gate.SILU, x, up)
    assert ((out.written() - exact).abs() <= LIMITS[Dtype.BFLOAT16] * exact.abs() + 1e-5).all()


@every_gate
def test_gates_of_nan_are_nan(device: Native, gate: Gate) -> None:
    x = torch.tensor([[torch.nan, 1.0, 1.0]], device=device.device)
    up = torch.tensor([[1.0, torch.nan, 1.0]], device=device.device)
    out = Output((1, 3), Dtype.FLOAT32, device.device)
    gated(device, gate, x, up, Dtype.FLOAT32, out=out.tensor.data_ptr())
    assert out.written().isnan().tolist() == [[True, True, False]]


@every_gate
def test_gates_of_large_numbers_stay_finite(device: Native, gate: Gate) -> None:
    x = torch.tensor([[-3e38, -200.0, -90.0, 0.0, 90.0, 3e38]], device=device.device)
    up = torch.ones_like(x)
    out = Output((1, 6), Dtype.FLOAT32, device.device)
    gated(device, gate, x, up, Dtype.FLOAT32, out=out.tensor.data_ptr())
    largest = exact_gate(gate, torch.tensor(90.0), up[0, 0]) if gate is Gate.CLAMPED else 3e38
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, min(90.0, float(largest)), float(largest)]], dtype=torch.float64)
    torch.testing.assert_close(out.written() + 0.0, expected, rtol=1e-6, atol=0)


def check_sums(
    device: Native, dtype: Dtype, with_bias: bool, rows: int, width: int, shifts: tuple[int, ...] = (0, 0, 0, 0)
) -> None:
    """Compare the op with float64.

    Args:
        shifts: elements by which sums, scales, bias and output miss the alignment of a whole buffer.
    """
    sums = torch.randint(-(2**27), 2**27, (rows, width), dtype=torch.int32).to(device.device)
    sums = shifted(sums, shifts[0])
    row_scales, scales = torch.rand(rows) * 1e-4, torch.rand(width) * 1e-4
    bias = random(1, width, dtype, device, shifts[2])
    here = row_scales.to(device.device), shifted(scales.to(device.device), shifts[1])
    out = Output((rows, width), dtype, device.device, shifts[3])
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
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (2, 64), (5, 1028), (2, 5000)])
def test_sums_of_codes_become_numbers(device: Native, dtype: Dtype, with_bias: bool, rows: int, width: int) -> None:
    check_sums(device, dtype, with_bias, rows, width)


@pytest.mark.parametrize("at", range(4), ids=["sums", "scales", "bias", "out"])
def test_sums_need_only_the_alignment_of_elements(device: Native, at: int) -> None:
    check_sums(device, Dtype.FLOAT32, True, 3, 64, tuple(int(place == at) for place in range(4)))


def check_gathered(device: Native, dtype: Dtype, width: int, shift: int = 0, out_shift: int = 0) -> None:
    """Gather rows of a table, and of ids that it has not.

    Args:
        shift, out_shift: elements by which the table and the output miss the alignment of a whole buffer.
    """
    table = random(9, width, dtype, device, shift)
    ids = torch.tensor([8, 0, 3, 3, -1, 9, 2**31 - 1, 8], dtype=torch.int32, device=device.device)
    out = Output((8, width), dtype, device.device, out_shift)
    args = GatherRows(
        table=table.data_ptr(), ids=ids.data_ptr(), out=out.tensor.data_ptr(), rows=8, width=width, count=9, dtype=dtype
    )
    launch(device, "gather_rows", args)
    found, right = out.written(), [0, 1, 2, 3, 7]
    assert torch.equal(found[right], table.cpu()[ids.cpu()[right].long()].double())
    assert found[4:7].isnan().all()


@every_dtype
@pytest.mark.parametrize("width", [1, 7, 64, 577, 3000])
def test_gathers_rows_and_gives_nan_for_ids_that_are_not_there(device: Native, dtype: Dtype, width: int) -> None:
    check_gathered(device, dtype, width)


@pytest.mark.parametrize(("shift", "out_shift"), [(1, 0), (0, 1)], ids=["table", "out"])
def test_gathers_need_only_the_alignment_of_elements(device: Native, shift: int, out_shift: int) -> None:
    check_gathered(device, Dtype.BFLOAT16, 64, shift, out_shift)
