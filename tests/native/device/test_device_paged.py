"""Attention of prompts by FlashInfer over the pool of the kernels, beside the kernel and beside plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from headrace_engine.backends.cuda.batch import CudaBatch
from headrace_engine.backends.cuda.device.device import CudaDevice, Device
from headrace_engine.backends.cuda.device.paged import PagedMaker, PagedPrefill
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.models.ops import Batch, Extent
from headrace_engine.models.spec import LayerSpec
from headrace_engine.native import Native
from support.sim.device import SimDevice
from support.sim.paged import SimPagedMaker
from torch import Tensor

from bench.gpu.shapes import BLOCK_SIZE, TINY, random_model

EXTENTS = [
    Extent(0, 1, 30, (3, 9)),
    Extent(1, 1, 0, (4,)),
    Extent(2, 37, 0, (11, 2, 7)),
    Extent(39, 5, 0, (15, 8)),
    Extent(44, 17, 31, (13, 5, 0, 1, 6)),
    Extent(61, 2, 30, (10, 12)),
    Extent(63, 16, 16, (14, 16)),
]
"""Two single rows; a prompt; one whose table is longer; later chunks, in the middle of blocks and whole ones."""
ROWS = 79

Attend = Callable[[PagedMaker | None], Tensor]


@pytest.fixture
def opened(device: Native) -> Device:
    """The device of each library."""
    return CudaDevice(0) if torch.device(device.device).type == "cuda" else SimDevice()


def attending(opened: Device, window: int | None, soft_cap: float) -> Attend:
    """Return what computes attention of the same rows over the same pool, by what makes paged attention or a kernel."""
    spec = replace(TINY, layers=(LayerSpec(window=window),), attention_soft_cap=soft_cap)
    model = random_model(spec, opened, Sizes(ROWS, len(EXTENTS), 5, BLOCK_SIZE))
    pool = model.pool(17)
    numbers = pool.tensors[0].view(torch.bfloat16)
    numbers.copy_(torch.randn(numbers.shape))
    q = torch.randn(ROWS, spec.query_width).to(opened.torch, torch.bfloat16)

    def attend(maker: PagedMaker | None) -> Tensor:
        staging = model.staging()
        prompts = None if maker is None else PagedPrefill(maker, pool, spec)
        ops = CudaOps(spec, model.positions, pool, staging, opened, model.products, prompts)
        return ops.paged_attention(0, q, _batch(ops, staging.fill))

    return attend


def _batch(ops: CudaOps, fill: Callable[[Batch], int]) -> CudaBatch:
    step = Batch([0] * ROWS, EXTENTS, [])
    fill(step)
    return ops.prepare(step)


def assert_close(got: Tensor, expected: Tensor) -> None:
    """Each sequence's rows differ by rounding alone, and single rows, which are the kernel's in both, by nothing."""
    assert torch.equal(got[:2], expected[:2])
    for extent in EXTENTS[2:]:
        rows = slice(extent.row, extent.row + extent.length)
        off = torch.linalg.norm((got[rows] - expected[rows]).float())
        assert off < 6e-3 * torch.linalg.norm(expected[rows].float())


rules = pytest.mark.parametrize(("window", "soft_cap"), [(None, 0.0), (7, 0.0), (40, 0.0), (None, 5.0)])


@rules
def test_the_kernel_attends_as_plain_torch_does(opened: Device, window: int | None, soft_cap: float) -> None:
    attend = attending(opened, window, soft_cap)
    assert_close(attend(None), attend(SimPagedMaker()))


@rules
def test_flashinfer_attends_as_plain_torch_does(opened: Device, window: int | None, soft_cap: float) -> None:
    if opened.torch.type == "cuda":
        pytest.importorskip("flashinfer")
    else:
        pytest.skip("FlashInfer computes on cards alone")
    attend = attending(opened, window, soft_cap)
    assert_close(attend(opened.paged_attention()), attend(SimPagedMaker()))
