"""Matrices of codes on devices: packing, rows as numbers, and products of few rows, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.native import Code, Dtype, Format, Matrix, MatrixRows, Native, NativeError
from headrace_engine.native.abi import QuantizedLinear, UnpackRows
from headrace_engine.native.quantized import QuantizedMatrix
from native.buffers import TORCH, Output, shifted, stream_of
from torch import Tensor

LIMITS = {Dtype.BFLOAT16: 4e-3, Dtype.FLOAT16: 5e-4}
FORMATS: list[dict[str, Any]] = [
    {"format": kind, "group": group, "scales": scales, "offsets": offsets, "zero": zero}
    for kind, group, scales, offsets, zero in (
        (Format.INT4, 32, Dtype.FLOAT16, True, 0),
        (Format.INT4, 64, Dtype.FLOAT32, False, 8),
        (Format.INT4, 128, Dtype.FLOAT16, False, 8),
        (Format.INT4, 128, Dtype.FLOAT32, True, 5),
        (Format.INT4, 0, Dtype.FLOAT16, True, 15),
        (Format.INT8, 32, Dtype.FLOAT32, False, 128),
        (Format.INT8, 64, Dtype.FLOAT16, True, 0),
        (Format.INT8, 128, Dtype.FLOAT16, False, 255),
        (Format.INT8, 0, Dtype.FLOAT32, False, 128),
        (Format.INT8, 32, Dtype.FLOAT16, True, 77),
    )
]
SIZES = [(64, 64), (1, 1), (70, 33), (200, 192), (65, 640)]

every_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: "-".join(str(int(v)) for v in form.values()))
every_dtype = pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT16], ids=lambda dtype: dtype.name.lower())


class Packed:
    """A random matrix on the device, and its weights in float64."""

    def __init__(self, device: Native, rng: np.random.Generator, matrix: Matrix, dtype: Dtype) -> None:
        self.quantized = QuantizedMatrix(device, matrix, dtype)
        most = 256 if matrix.format is Format.INT8 else 16
        self.codes = rng.integers(0, most, (matrix.outputs, matrix.inputs), dtype=np.uint8)
        groups = (matrix.outputs, matrix.groups)
        self.scales = self._numbers(rng.uniform(0.5, 1.5, groups) / most)
        self.offsets = self._numbers(rng.standard_normal(groups)) if matrix.offsets else None
        host = torch.full((self.quantized.nbytes // 4 + 64,), -1, dtype=torch.int32).view(torch.uint8)
        address = host.data_ptr()
        half = matrix.outputs // 128 * 64
        for first, last in ((half, matrix.outputs), (0, half)):
            if first < last:
                offsets = None if self.offsets is None else self.offsets[first:last]
                self.quantized.pack(
                    address, MatrixRows(self.codes[first:last], self.scales[first:last], offsets), first
                )
        assert (host[self.quantized.nbytes :] == 255).all(), "bytes after the matrix were written"
        self.host, self.data = host, host.to(device.device).clone()

    @property
    def struct(self) -> Any:
        return self.quantized.struct(self.data.data_ptr())

    def _numbers(self, values: np.ndarray) -> np.ndarray:
        """What the storage of scales keeps of them, as float32."""
        half = self.quantized.matrix.scales is Dtype.FLOAT16
        return values.astype(np.float16 if half else np.float32).astype(np.float32)

    def exact(self) -> Tensor:
        matrix = self.quantized.matrix
        width = matrix.group or matrix.inputs

        def spread(numbers: np.ndarray) -> np.ndarray:
            return np.repeat(numbers.astype(np.float64), width, 1)[:, : matrix.inputs]

        weights = spread(self.scales) * (self.codes.astype(np.float64) - matrix.zero)
        return torch.from_numpy(weights if self.offsets is None else weights + spread(self.offsets))


def multiply(
    device: Native, packed: Packed, x: Tensor, dtype: Dtype, splits: int = 1, bias: Tensor | None = None
) -> Tensor:
    rows, outputs = len(x), packed.quantized.matrix.outputs
    out = Output((rows, outputs), dtype, device.device)
    scratch = Output((splits, rows, outputs), Dtype.FLOAT32, device.device)
    args = QuantizedLinear(
        matrix=packed.struct,
        x=x.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        out=out.tensor.data_ptr(),
        scratch=scratch.tensor.data_ptr() if splits > 1 else None,
        rows=rows,
        splits=splits,
    )
    device.launch("quantized_linear", args, stream_of(device))
    scratch.written()
    return out.written()


def random(device: Native, dtype: Dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(TORCH[dtype]).to(device.device)


def assert_close(found: Tensor, exact: Tensor, dtype: Dtype) -> None:
    """Each row by its length, and each entry by what the sum of so many terms may lose."""
    error = (found - exact).norm(dim=1)
    assert (error <= LIMITS[dtype] * exact.norm(dim=1) + 1e-6).all(), f"largest error {error.max()}"


@every_format
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_packed_rows_are_the_codes_times_their_scales(
    device: Native, rng: np.random.Generator, form: dict[str, Any], outputs: int, inputs: int
) -> None:
    """On the host one by one; on the device all in order, and by their ids."""
    packed = Packed(device, rng, Matrix(outputs, inputs, **form), Dtype.BFLOAT16)
    exact = packed.exact()
    address = packed.host.data_ptr()
    unpacked = np.stack([packed.quantized.row(address, row) for row in range(outputs)])
    np.testing.assert_allclose(unpacked, exact.numpy(), rtol=1e-6, atol=1e-6)
    expected = torch.from_numpy(unpacked).bfloat16().double()
    first = outputs // 3
    out = Output((outputs - first, inputs), Dtype.BFLOAT16, device.device)
    rows = UnpackRows(matrix=packed.struct, out=out.tensor.data_ptr(), rows=outputs - first, first=first)
    device.launch("unpack_rows", rows, stream_of(device))
    torch.testing.assert_close(out.written(), expected[first:], rtol=2**-7, atol=1e-6)
    ids = torch.tensor([outputs - 1, -1, 0, outputs], dtype=torch.int32, device=device.device)
    some = Output((4, inputs), Dtype.BFLOAT16, device.device)
    args = UnpackRows(matrix=packed.struct, ids=ids.data_ptr(), out=some.tensor.data_ptr(), rows=4)
    device.launch("unpack_rows", args, stream_of(device))
    found = some.written()
    torch.testing.assert_close(found[[0, 2]], expected[[outputs - 1, 0]], rtol=2**-7, atol=1e-6)
    assert found[[1, 3]].isnan().all()


def test_unpacked_rows_need_only_the_alignment_of_their_elements(device: Native, rng: np.random.Generator) -> None:
    packed = Packed(device, rng, Matrix(5, 64, Format.INT8, 32, Dtype.FLOAT16, zero=128), Dtype.BFLOAT16)
    out = Output((5, 64), Dtype.BFLOAT16, device.device, shift=1)
    rows = UnpackRows(matrix=packed.struct, out=out.tensor.data_ptr(), rows=5)
    device.launch("unpack_rows", rows, stream_of(device))
    torch.testing.assert_close(out.written(), packed.exact(), rtol=2**-7, atol=1e-6)


@every_format
@every_dtype
@pytest.mark.parametrize(("rows", "splits"), [(1, 1), (9, 2), (17, 1), (33, 3)])
def test_multiplies_few_rows(
    device: Native, rng: np.random.Generator, form: dict[str, Any], dtype: Dtype, rows: int, splits: int
) -> None:
    """Each number of eights of rows, with and without splits, over a tile that is not full."""
    packed = Packed(device, rng, Matrix(70, 640, **form), dtype)
    x, bias = random(device, dtype, rows, 640), random(device, dtype, 70)
    found = multiply(device, packed, x, dtype, splits, bias)
    assert_close(found, x.cpu().double() @ packed.exact().T + bias.cpu().double(), dtype)


@every_dtype
@pytest.mark.parametrize("bits", [Format.INT4, Format.INT8], ids=lambda bits: bits.name.lower())
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (63, 31), (130, 72), (300, 1000)])
@pytest.mark.parametrize(("rows", "splits"), [(8, 1), (16, 4), (32, 7), (64, 1), (64, 40)])
def test_multiplies_matrices_of_odd_sizes(
    device: Native, rng: np.random.Generator, dtype: Dtype, bits: Format, outputs: int, inputs: int, rows: int,
    splits: int,
) -> None:  # fmt: skip
    """More splits than rounds too: those that are left over add nothing."""
    packed = Packed(device, rng, Matrix(outputs, inputs, bits, 32, Dtype.FLOAT16, offsets=True), dtype)
    x = random(device, dtype, rows, inputs)
    assert_close(multiply(device, packed, x, dtype, splits), x.cpu().double() @ packed.exact().T, dtype)


def test_rows_of_x_need_only_the_alignment_of_their_elements(device: Native, rng: np.random.Generator) -> None:
    packed = Packed(device, rng, Matrix(64, 128, Format.INT4, 64, Dtype.FLOAT16, zero=8), Dtype.BFLOAT16)
    x = shifted(random(device, Dtype.BFLOAT16, 3, 128), 1)
    assert_close(multiply(device, packed, x, Dtype.BFLOAT16), x.cpu().double() @ packed.exact().T, Dtype.BFLOAT16)


def test_products_are_the_same_bits_alone_and_among_others(device: Native, rng: np.random.Generator) -> None:
    packed = Packed(device, rng, Matrix(64, 320, Format.INT4, 32, Dtype.FLOAT16, offsets=True), Dtype.BFLOAT16)
    x = random(device, Dtype.BFLOAT16, 7, 320)
    x[2] = torch.nan
    together = multiply(device, packed, x, Dtype.BFLOAT16, 2)
    alone = multiply(device, packed, x[4:5].clone(), Dtype.BFLOAT16, 2)
    assert torch.equal(alone[0], together[4])
    assert together[2].isnan().all()


def test_splits_keep_multiprocessors_busy_and_rounds_together(device: Native) -> None:
    def splits(outputs: int, inputs: int, rows: int) -> int:
        matrix = Matrix(outputs, inputs, Format.INT4, 128, Dtype.FLOAT16)
        return QuantizedMatrix(device, matrix, Dtype.BFLOAT16).splits(rows, 132)

    assert splits(4096, 4096, 1) == 4  # 64 tiles, and 16 rounds of four steps, four to a block
    assert splits(100_000, 4096, 1) == 1
    assert splits(64, 64, 1) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": 16}, {"zero": 16}, {"scales": Dtype.BFLOAT16}, {"format": Format.FLOAT16, "group": 0},
        {"codebook": tuple(range(16))},
    ],
    ids=str,
)  # fmt: skip
def test_storage_that_the_kernels_do_not_have_is_refused(device: Native, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"outputs": 64, "inputs": 64, "format": Format.INT4, "group": 32, "scales": Dtype.FLOAT16}
    with pytest.raises(ValueError, match=r"^core_(sim|cuda) has no Matrix\("):
        QuantizedMatrix(device, Matrix(**{**right, **wrong}), Dtype.BFLOAT16)
    with pytest.raises(ValueError, match="for float32"):
        QuantizedMatrix(device, Matrix(**right), Dtype.FLOAT32)


WRONG = [
    ("quantized_linear", {"rows": 65}, "rows", Code.BAD_COUNT),
    ("quantized_linear", {"splits": 0}, "splits", Code.BAD_EXTENT),
    ("quantized_linear", {"splits": 2}, "scratch", Code.NULL_POINTER),
    ("quantized_linear", {"x": 4097}, "x", Code.MISALIGNED),
    ("quantized_linear", {"data": 4104}, "matrix", Code.MISALIGNED),
    ("quantized_linear", {"group": 48}, "matrix.group", Code.BAD_GROUP),
    ("quantized_linear", {"bits": 5}, "matrix.bits", Code.BAD_CODE),
    ("unpack_rows", {"first": -1}, "first", Code.BAD_COUNT),
    ("unpack_rows", {"ids": 4096, "first": 1}, "first", Code.BAD_COUNT),
    ("unpack_rows", {"out": 0}, "out", Code.NULL_POINTER),
    ("unpack_rows", {"dtype": 1}, "matrix.dtype", Code.UNKNOWN_DTYPE),
]


@pytest.mark.parametrize(("op", "wrong", "field", "code"), WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(
    device: Native, op: str, wrong: dict[str, int], field: str, code: Code
) -> None:
    args: QuantizedLinear | UnpackRows = QuantizedLinear(x=4096, out=4096, rows=2, splits=1)
    if op == "unpack_rows":
        args = UnpackRows(out=4096, rows=2)
    matrix = {"data": 4096, "outputs": 64, "inputs": 64, "bits": 4, "group": 32, "scales": 3, "dtype": 2}
    for name, value in {**matrix, **wrong}.items():
        setattr(args.matrix if name in matrix else args, name, value)
    with pytest.raises(NativeError, match=f"^{op}: {field}") as caught:
        device.launch(op, args, 0)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_rows_that_do_not_fit_the_tiles_are_refused(device: Native) -> None:
    quantized = QuantizedMatrix(device, Matrix(100, 8, Format.INT4, 32, Dtype.FLOAT16), Dtype.BFLOAT16)
    scratch = torch.zeros(quantized.nbytes + 16, dtype=torch.uint8)
    address = scratch.data_ptr() + -scratch.data_ptr() % 16
    for first, count, field in ((1, 64, "first_row"), (0, 63, "rows"), (64, 64, "rows")):
        rows = MatrixRows(np.zeros((count, 8), np.uint8), np.ones((count, 1), np.float32))
        with pytest.raises(NativeError, match=f"^quantized_pack: {field} = "):
            quantized.pack(address, rows, first)
    with pytest.raises(ValueError, match="not contiguous float32"):
        quantized.pack(address, MatrixRows(np.zeros((64, 8), np.uint8)))
    with pytest.raises(NativeError, match=r"^quantized_row: "):
        quantized.row(address, 100)
