"""What torch computes for the cuda backend on a device: products of codes, and attention of whole prompts."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.backends.cuda.device.device import CudaDevice, Device
from headrace_engine.backends.cuda.weights.activations import FP8_CAPABILITY
from headrace_engine.backends.cuda.weights.row_products import CodeProducts, PlainProducts, RowQuantizedWeight
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native.abi import RowCodes
from native.conftest import need_sim
from support.sim.device import SimDevice


@pytest.fixture(params=["sim", "cuda"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The simulated device, and the card where there is one."""
    if request.param == "sim":
        need_sim()
    folder = request.getfixturevalue("libraries" if request.param == "sim" else "cuda_libraries")
    monkeypatch.setenv(NATIVE_VARIABLE, str(folder))
    return SimDevice() if request.param == "sim" else CudaDevice(0)


@pytest.mark.parametrize("kind", list(RowCodes))
@pytest.mark.parametrize("rows", [1, 17, 40, 300])
def test_products_are_those_of_the_codes(where: Device, kind: RowCodes, rows: int) -> None:
    """Fewer rows than torch multiplies as integers, and numbers of rows that it does not."""
    if kind is RowCodes.FP8 and where.capability < FP8_CAPABILITY:
        pytest.skip("the card multiplies no e4m3")
    products = CodeProducts(where, kind)
    x, bias, numbers = (torch.randn(shape).bfloat16().to(where.torch) for shape in ((rows, 160), (48,), (48, 160)))
    of_weight = products.quantize(numbers)
    weight = RowQuantizedWeight(of_weight.codes[:48], of_weight.scales, [48])
    values = weight.codes.double() * weight.scales.double().unsqueeze(1)
    for made_by in (products, PlainProducts(kind)):
        quantized = made_by.quantize(x)
        assert len(quantized) == rows
        exact = quantized.codes[:rows].double() * quantized.scales.double().unsqueeze(1)
        assert torch.linalg.norm(exact - x.double()) < 0.04 * torch.linalg.norm(x.double())
        for given in (None, bias):
            got = made_by.linear(quantized, weight, given)
            expected = exact @ values.T + (0 if given is None else given.double())
            assert got.shape == (rows, 48)
            assert torch.linalg.norm(got.double() - expected) < 4e-3 * torch.linalg.norm(expected)


@pytest.mark.parametrize("window", [0, 1, 30])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_prompts_attend_to_themselves(where: Device, window: int, head_dim: int) -> None:
    """Query heads share keys; lengths are of one row and of many."""
    lengths = [1, 65, 7, 130]
    firsts = torch.tensor([0, 1, 66, 73, 203], dtype=torch.int32)
    q = torch.randn(sum(lengths), 6, head_dim).bfloat16()
    k, v = torch.randn(2, sum(lengths), 2, head_dim).bfloat16()
    here = (part.to(where.torch) for part in (q, k, v, firsts))
    got = where.attention()(*here, longest=130, window=window, scale=0.1).cpu().float()
    for begin, end in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        expected = exact_attention(*(part[begin:end].double() for part in (q, k, v)), window)
        assert torch.linalg.norm(got[begin:end] - expected) < 1e-2 * torch.linalg.norm(expected)


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    k, v = (part.repeat_interleave(3, dim=1) for part in (k, v))
    scores = 0.1 * torch.einsum("qhd,khd->hqk", q, k)
    behind = torch.arange(len(q)).unsqueeze(1) - torch.arange(len(q))
    seen = (behind >= 0) & (behind < (window or len(q)))
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
