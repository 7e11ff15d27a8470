"""RMSNorm, with and without a residual, against the same in float64."""

import math
from typing import Any

import pytest
import torch
from headrace_engine.native import Code, Dtype, Native, NativeError
from headrace_engine.native.abi import RmsNorm
from native.buffers import TORCH, Output, shifted, stream_of
from torch import Tensor

LIMITS = {Dtype.FLOAT32: 1e-6, Dtype.BFLOAT16: 4e-3, Dtype.FLOAT16: 5e-4}
EPS = 1e-5
SHAPES = [(rows, hidden) for rows in (1, 3, 17) for hidden in (1, 7, 64, 576, 1000, 4096)]
LONG_ROWS = [(2, hidden) for hidden in (6144, 8200, 16392)]

every_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name.lower())


def random(shape: tuple[int, ...], dtype: Dtype, backend: Native, shift: int = 0) -> Tensor:
    values = torch.randn(shape, dtype=torch.float32).to(TORCH[dtype]).to(backend.device)
    return shifted(values, shift) if shift else values


def random_weight(hidden: int, dtype: Dtype, backend: Native, shift: int = 0) -> Tensor:
    """Weights of either sign, none so small that a product with one would be subnormal."""
    sign = torch.randint(0, 2, (hidden,)) * 2 - 1
    weight = (sign * (torch.rand(hidden) + 0.5)).to(TORCH[dtype]).to(backend.device)
    return shifted(weight, shift) if shift else weight


def norm(backend: Native, x: Tensor, weight: Tensor, out: Tensor, dtype: Dtype, eps: float = EPS) -> None:
    launch(backend, {"x": x, "weight": weight, "out": out}, dtype, eps)


def add_norm(
    backend: Native, x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, residual_out: Tensor, dtype: Dtype
) -> None:
    tensors = {"x": x, "residual": residual, "weight": weight, "out": out, "residual_out": residual_out}
    launch(backend, tensors, dtype, EPS)


def launch(backend: Native, tensors: dict[str, Tensor], dtype: Dtype, eps: float) -> None:
    assert all(tensor.is_contiguous() and tensor.dtype is TORCH[dtype] for tensor in tensors.values())
    rows, hidden = tensors["x"].shape
    at = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    args = RmsNorm(**at, rows=rows, hidden=hidden, eps=eps, dtype=dtype)
    backend.launch("rms_norm", args, stream_of(backend))


def reference(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    wide = x.cpu().double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.cpu().double()


def rounded_sum(x: Tensor, residual: Tensor) -> Tensor:
    return (x.float() + residual.float()).to(x.dtype)


def assert_close(actual: Tensor, expected: Tensor, dtype: Dtype) -> None:
    """Each row differs from the reference by at most the dtype's limit, relative to the row's length."""
    error, allowed = (actual - expected).norm(dim=-1), LIMITS[dtype] * expected.norm(dim=-1)
    assert (error <= allowed).all(), f"largest error {error.max().item()}, allowed {allowed.min().item()}"


@every_dtype
@pytest.mark.parametrize(("rows", "hidden"), SHAPES + LONG_ROWS)
def test_norms_each_row(backend: Native, dtype: Dtype, rows: int, hidden: int) -> None:
    x, weight = random((rows, hidden), dtype, backend), random_weight(hidden, dtype, backend)
    out = Output((rows, hidden), dtype, backend.device)
    norm(backend, x, weight, out.tensor, dtype)
    assert_close(out.written(), reference(x, weight), dtype)


@every_dtype
@pytest.mark.parametrize(("rows", "hidden"), SHAPES + LONG_ROWS)
def test_adds_the_residual_rounds_it_and_norms_the_sum(backend: Native, dtype: Dtype, rows: int, hidden: int) -> None:
    x, residual = random((rows, hidden), dtype, backend), random((rows, hidden), dtype, backend)
    weight = random_weight(hidden, dtype, backend)
    out, residual_out = (Output((rows, hidden), dtype, backend.device) for _ in range(2))
    add_norm(backend, x, residual, weight, out.tensor, residual_out.tensor, dtype)
    new_residual = rounded_sum(x, residual)
    assert torch.equal(residual_out.written(), new_residual.cpu().double())
    assert_close(out.written(), reference(new_residual, weight), dtype)


@every_dtype
@pytest.mark.parametrize("hidden", [64, 1000, 16392])
def test_outputs_may_overwrite_inputs(backend: Native, dtype: Dtype, hidden: int) -> None:
    x, residual = (random((3, hidden), dtype, backend) for _ in range(2))
    weight = random_weight(hidden, dtype, backend)
    expected_residual = rounded_sum(x, residual)
    add_norm(backend, x, residual, weight, x, residual, dtype)
    assert torch.equal(residual.cpu(), expected_residual.cpu())
    assert_close(x.cpu().double(), reference(expected_residual, weight), dtype)

    x = random((3, hidden), dtype, backend)
    expected = reference(x, weight)
    norm(backend, x, weight, x, dtype)
    assert_close(x.cpu().double(), expected, dtype)


@every_dtype
@pytest.mark.parametrize("hidden", [64, 577, 4096])
@pytest.mark.parametrize("misplaced", ["x", "residual", "weight", "out", "residual_out"])
def test_buffers_need_only_the_alignment_of_their_elements(
    backend: Native, dtype: Dtype, hidden: int, misplaced: str
) -> None:
    def shift(name: str) -> int:
        return int(name == misplaced)

    x, residual = (random((2, hidden), dtype, backend, shift(name)) for name in ("x", "residual"))
    weight = random_weight(hidden, dtype, backend, shift("weight"))
    out, residual_out = (Output((2, hidden), dtype, backend.device, shift(name)) for name in ("out", "residual_out"))
    add_norm(backend, x, residual, weight, out.tensor, residual_out.tensor, dtype)
    new_residual = rounded_sum(x, residual)
    assert torch.equal(residual_out.written(), new_residual.cpu().double())
    assert_close(out.written(), reference(new_residual, weight), dtype)


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT16])
def test_every_16_bit_number_is_read_and_rounded_right(backend: Native, dtype: Dtype) -> None:
    """Subnormals, infinities, NaN and ties included: the sums are those of torch, bit for bit."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(64, 1024)
    x = patterns.view(TORCH[dtype]).to(backend.device)
    residual = patterns.flatten()[torch.randperm(2**16)].view(64, 1024).view(TORCH[dtype]).to(backend.device)
    weight = random_weight(1024, dtype, backend)
    out, residual_out = torch.empty_like(x), torch.empty_like(x)
    add_norm(backend, x, residual, weight, out, residual_out, dtype)
    expected, actual = rounded_sum(x, residual).cpu(), residual_out.cpu()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.nan_to_num(0).view(torch.int16), expected.nan_to_num(0).view(torch.int16))


@every_dtype
def test_a_row_of_zeros_stays_zero(backend: Native, dtype: Dtype) -> None:
    x = torch.zeros((2, 64), dtype=TORCH[dtype], device=backend.device)
    out = Output((2, 64), dtype, backend.device)
    norm(backend, x, random_weight(64, dtype, backend), out.tensor, dtype)
    assert torch.equal(out.written(), torch.zeros(2, 64, dtype=torch.float64))


@every_dtype
@pytest.mark.parametrize("magnitude", [1e-4, 3e4])
def test_large_and_small_numbers_do_not_overflow_or_vanish(backend: Native, dtype: Dtype, magnitude: float) -> None:
    x = (random((3, 576), dtype, backend).sign() * magnitude).to(TORCH[dtype])
    weight = torch.ones(576, dtype=TORCH[dtype], device=backend.device)
    out = Output((3, 576), dtype, backend.device)
    norm(backend, x, weight, out.tensor, dtype, eps=1e-12)
    assert_close(out.written(), reference(x, weight, eps=1e-12), dtype)


@every_dtype
@pytest.mark.parametrize("hidden", [576, 1001])
def test_a_row_does_not_depend_on_its_neighbours(backend: Native, dtype: Dtype, hidden: int) -> None:
    """Not on how many there are, and not on what is in them, NaN included: the bits are the same."""
    x, weight = random((5, hidden), dtype, backend), random_weight(hidden, dtype, backend)
    x[1], x[3] = math.nan, math.inf
    together = Output((5, hidden), dtype, backend.device)
    norm(backend, x, weight, together.tensor, dtype)
    for row in (0, 2, 4):
        alone = Output((1, hidden), dtype, backend.device)
        norm(backend, shifted(x[row : row + 1], 0), weight, alone.tensor, dtype)
        assert torch.equal(alone.written()[0], together.written()[row])


def test_no_rows_is_no_work(backend: Native) -> None:
    backend.launch("rms_norm", RmsNorm(rows=0, hidden=64, eps=EPS, dtype=Dtype.FLOAT32))


WRONG = [
    ("x", 0, Code.NULL_POINTER),
    ("residual", 0, Code.NULL_POINTER),
    ("weight", 0, Code.NULL_POINTER),
    ("out", 0, Code.NULL_POINTER),
    ("residual_out", 0, Code.NULL_POINTER),
    ("x", 0x1001, Code.MISALIGNED),
    ("residual_out", 0x1001, Code.MISALIGNED),
    ("rows", -1, Code.BAD_COUNT),
    ("rows", 2**31, Code.BAD_COUNT),
    ("hidden", 0, Code.BAD_EXTENT),
    ("hidden", -64, Code.BAD_EXTENT),
    ("hidden", 2**31, Code.BAD_EXTENT),
    ("eps", -1e-5, Code.BAD_NUMBER),
    ("eps", math.nan, Code.BAD_NUMBER),
    ("eps", math.inf, Code.BAD_NUMBER),
    ("dtype", 0, Code.UNKNOWN_DTYPE),
    ("dtype", 4, Code.UNKNOWN_DTYPE),
]


@pytest.mark.parametrize(("field", "value", "code"), WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(backend: Native, field: str, value: Any, code: Code) -> None:
    """No buffer is touched: these addresses lead nowhere."""
    arguments: dict[str, Any] = dict.fromkeys(("out", "residual_out", "x", "residual", "weight"), 0x1000)
    arguments |= {"rows": 2, "hidden": 64, "eps": EPS, "dtype": Dtype.BFLOAT16, field: value}
    with pytest.raises(NativeError, match=f"^rms_norm: {field} = ") as caught:
        backend.launch("rms_norm", RmsNorm(**arguments))
    assert (caught.value.code, caught.value.field) == (code, field)
