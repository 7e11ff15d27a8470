"""Steps on the simulated device are captured and replayed under the rules of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.sim.recording import CaptureError, Recording
from torch import Tensor


class Step:
    """Views, products, in-place sums, new tensors and gathers: what a step of a model consists of."""

    def __init__(self) -> None:
        self.x = torch.randn(4, 8)
        self.weight = torch.randn(8, 8)
        self.ids = torch.tensor([1, 2])

    def compute(self) -> Tensor:
        product = (self.x @ self.weight.T).view(2, 16)[:, 1:9]
        total = torch.zeros(2, 8)
        total += product.float()
        total[:, 0].fill_(5.0)
        return torch.nn.functional.silu(total).softmax(-1)[self.ids - 1]


def record(work: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
    recording = Recording()
    with torch.inference_mode(), recording.torch_operators():
        return recording, work()


def test_a_replay_computes_on_what_the_memory_holds_now() -> None:
    step = Step()
    recording, out = record(step.compute)
    before = out.clone()
    assert torch.equal(before, step.compute())
    step.x.copy_(torch.randn(4, 8))
    step.ids.copy_(torch.tensor([2, 2]))
    assert torch.equal(out, before), "nothing happens before the replay"
    recording.replay()
    assert torch.equal(out, step.compute())
    assert not torch.equal(out, before)


def test_a_replay_allocates_nothing_new_for_its_results() -> None:
    step = Step()
    recording, out = record(step.compute)
    place = out.data_ptr()
    recording.replay()
    assert out.data_ptr() == place


def test_other_operations_keep_their_order_in_a_recording() -> None:
    x, seen = torch.ones(3), list[float]()
    recording = Recording()
    with torch.inference_mode(), recording.torch_operators():
        x += 1
        recording.add(lambda: seen.append(float(x[0])))
        x += 1
    recording.replay()
    assert seen == [4.0]
    assert x.tolist() == [5.0] * 3


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0, 0] > 0),
        lambda x: torch.tensor([1, 2]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.masked_select(x, x > 0),
    ],
    ids=["item", "branch", "from Python", "index by mask", "nonzero", "masked_select"],
)
def test_what_needs_the_host_cannot_be_recorded(work: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(CaptureError, match="needs the host"):
        record(lambda: work(x))
