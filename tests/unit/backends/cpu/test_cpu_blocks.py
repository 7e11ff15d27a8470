"""Blocks of GGUF files, kept as codes: packed, they read as the gguf package's own values, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from headrace_engine.backends.cpu.weights.blocks import BLOCK_TYPES
from headrace_engine.models.loaders.gguf_types import STORAGE_TYPES
from headrace_engine.native import Cpu, Memory, PackedMatrix, load

HALVES = {"Q4_0": 0, "Q4_1": (0, 2), "Q5_0": 0, "Q5_1": (0, 2), "Q8_0": 0, "Q2_K": (80, 82), "Q3_K": 108,
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": 208, "IQ4_NL": 0, "IQ4_XS": 0, "MXFP4": ()}  # fmt: skip
"""Where each block has its float16 numbers, which random bytes would fill with NaN now and then."""


@pytest.fixture(scope="module")
def cpu():
    with Cpu(load("cpu"), 2) as cpu:
        yield cpu


def random_rows(kind, rows, blocks, rng):
    """Rows of random blocks with finite scales of either sign, some of them subnormal."""
    size = BLOCK_TYPES[kind].nbytes
    packed = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in np.atleast_1d(HALVES[kind]).astype(int):
        scales = rng.standard_normal((rows, blocks)) * 10.0 ** rng.uniform(-7, 1, (rows, blocks))
        packed[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind == "MXFP4":
        packed[..., 0] = rng.integers(0, 200, (rows, blocks))  # A power of two, which must not overflow.
    return packed.reshape(rows, -1)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_packed_blocks_read_as_the_gguf_package_says(kind, cpu):
    rng = np.random.default_rng(1)
    packed = random_rows(kind, 70, 3, rng)
    expected = dequantize(packed, GGMLQuantizationType[kind])
    block_type = BLOCK_TYPES[kind]
    matrix = block_type.matrix(*expected.shape)
    weight = PackedMatrix(cpu.native, matrix, Memory(cpu.native, matrix.packed_bytes(cpu.native)))
    weight.pack(cpu, block_type.rows(packed))
    np.testing.assert_array_equal(np.stack([weight.row(row) for row in range(70)]), expected)
    np.testing.assert_array_equal(block_type.floats(packed), expected)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_sizes_are_those_of_the_format(kind):
    block_type, sizes = BLOCK_TYPES[kind], {storage.name: storage for storage in STORAGE_TYPES.values()}
    assert (block_type.values, block_type.nbytes) == GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    assert (block_type.values, block_type.nbytes) == (sizes[kind].block, sizes[kind].bytes)
    assert block_type.values % block_type.group == 0
