"""The cuda backend's mixtures of experts, on a CPU, beside those of the torch backend with the same scores."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.backends.cuda.mixtures import Mixtures
from headrace_engine.backends.cuda.weights.fused import spanning
from headrace_engine.backends.torch.experts import routed
from headrace_engine.models.experts import Expert
from headrace_engine.models.spec import ExpertsSpec
from torch import Tensor


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


def side_by_side(spec: ExpertsSpec, hidden: int, generator: torch.Generator) -> list[Expert[Tensor]]:
    """Random experts as they are loaded: gates and ups of all in one tensor, downs in another."""
    first = torch.randn(2 * spec.count * spec.width, hidden, generator=generator).bfloat16() / hidden**0.5
    down = torch.randn(spec.count * hidden, spec.width, generator=generator).bfloat16() / spec.width**0.5
    parts, downs = first.split(spec.width), down.split(hidden)
    experts = [Expert(parts[2 * i], parts[2 * i + 1], downs[i]) for i in range(spec.count)]
    assert spanning([expert.down for expert in experts]).shape == down.shape
    return experts


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize(
    "spec", [ExpertsSpec(8, 3, 48, True), ExpertsSpec(5, 1, 16, False), ExpertsSpec(3, 3, 64, False)], ids=str
)
def test_sums_are_those_of_one_expert_after_the_other(spec: ExpertsSpec, rows: int) -> None:
    generator, hidden = torch.Generator().manual_seed(rows), 64
    experts = side_by_side(spec, hidden, generator)
    x = torch.randn(rows, hidden, generator=generator).bfloat16()
    scores = torch.randn(rows, spec.count, generator=generator).bfloat16()
    got = Mixtures(spec, gated).routed(x, scores, experts)
    exact = [Expert(*(part.double() for part in (expert.gate, expert.up, expert.down))) for expert in experts]
    expected = routed(x.double(), scores.double(), exact, spec, gated)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=0.02 * expected.abs().max().item())


def test_a_row_has_the_same_bits_beside_others() -> None:
    spec, generator = ExpertsSpec(6, 2, 32, True), torch.Generator().manual_seed(0)
    experts = side_by_side(spec, 64, generator)
    x = torch.randn(40, 64, generator=generator).bfloat16()
    scores = torch.randn(40, 6, generator=generator).bfloat16()
    together = Mixtures(spec, gated).routed(x, scores, experts)
    order = torch.randperm(40, generator=generator)
    assert torch.equal(Mixtures(spec, gated).routed(x[order], scores[order], experts), together[order])
