"""What a device turns out to lack: code for its kind, or memory. A simulated device gives the answers of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.backends.cuda.weights.packing import Packer
from headrace_engine.config import WeightQuant
from headrace_engine.environment import CACHE_VARIABLE
from headrace_engine.errors import HeadraceError, InvalidArgument, OutOfMemory
from headrace_engine.native import Code, NativeError
from native.sim_runs import plan_for
from support.backends.runners import silent
from support.models.assemblies import count_assemblies, make_wide_latents
from support.models.tiny_models import make_tiny_family
from support.sim.device import SimDevice

MIB = 2**20


pytestmark = pytest.mark.usefixtures("simulator")


class Card(SimDevice):
    """A card of 64 MiB, of which others take some, where the largest step takes 3 MiB and a captured one 1 MiB.

    Args:
        free: bytes that are free.
    """

    def __init__(self, free: int = 60 * MIB) -> None:
        super().__init__()
        self.name = "cuda:0"
        self.free = free
        self.steps = iter((3 * MIB, MIB, MIB))

    def memory(self) -> tuple[int, int]:
        return 64 * MIB, self.free

    def taken(self, work: Callable[[], object]) -> int:
        work()
        return next(self.steps)


def runner_on(card: Card, model_path: Path, **changes: Any) -> CudaRunner:
    changes = {"num_blocks": 0, "max_length": 32, "max_batch": 2, **changes}
    runner = CudaRunner(plan_for(model_path, **changes), lambda: card)
    runner.load(silent)
    return runner


def block_bytes(runner: CudaRunner) -> int:
    model = runner._model
    assert model is not None
    return model.block_bytes * model.spec.num_layers


@pytest.mark.parametrize(("ratio", "free"), [(0.5, 60 * MIB), (None, 64 * MIB), (0.9, 20 * MIB)])
def test_the_pool_is_what_weights_and_the_largest_step_leave(model_path: Path, ratio: float | None, free: int) -> None:
    """At most what is free, whatever the ratio; the block that is nobody's is one of them."""
    runner = runner_on(Card(free), model_path, memory_ratio=ratio)
    sizes, each = runner.size(), block_bytes(runner)
    assert 1.1 * 4 * MIB <= sizes.workspace_bytes < 1.1 * 4 * MIB + MIB, "both steps, a tenth, and what is staged"
    by_ratio = int((ratio or 0.9) * 64 * MIB) - sizes.weight_bytes - sizes.workspace_bytes
    assert sizes.num_blocks == min(by_ratio, free - sizes.workspace_bytes - each) // each
    assert sizes.kv_bytes == sizes.num_blocks * each


def refused(work: Callable[[], object], kind: type[HeadraceError], *text: str) -> None:
    with pytest.raises(kind) as refusal:
        work()
    assert all(part in refusal.value.message for part in text), refusal.value.message


def test_too_large_weights_are_refused_before_they_are_read(model_path: Path) -> None:
    text = ("of weights do not fit, 1.0 KiB are free on cuda:0: set weight_quant, take a smaller model", "free memory")
    refused(lambda: runner_on(Card(1024), model_path), OutOfMemory, *text)


def test_nothing_is_assembled_before_the_memory_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, assembled = make_wide_latents(tmp_path), count_assemblies(monkeypatch)
    for quant in (WeightQuant.NONE, WeightQuant.INT8):
        text = "of weights do not fit, 60.0 MiB are free"
        refused(lambda quant=quant: runner_on(Card(), path, weight_quant=quant), OutOfMemory, text)  # type: ignore[misc]
    assert not assembled


def test_each_matrix_is_assembled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = make_tiny_family(tmp_path / "model", "minicpm3", qk_nope_head_dim=52, v_head_dim=64)
    for quant in (WeightQuant.NONE, WeightQuant.INT8):
        with monkeypatch.context() as patch:
            assembled = count_assemblies(patch)
            runner_on(Card(), path, weight_quant=quant)
            assert set(assembled.values()) == {1}
            assert len(assembled) == 2 * len(("q", "k", "v", "o", "k_spread"))


def test_a_pool_below_one_sequence_is_refused_with_the_sizes(model_path: Path) -> None:
    runner = runner_on(Card(6 * MIB), model_path)
    runner._model.device.free = 4 * MIB  # type: ignore[union-attr, attr-defined]
    refused(runner.size, OutOfMemory, "max_length 32 needs", "weights take", "workspace 4.", "raise memory_ratio")
    runner = runner_on(Card(6 * MIB), model_path, num_blocks=1000)
    refused(runner.size, OutOfMemory, "num_blocks 1000 × block_size 16 needs", "lower num_blocks to")


def none_left(*args: object, **kwargs: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_running_out_of_memory_says_what_to_lower(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As others compute there too, or less was free than it seemed."""
    where = "on cuda:0, where 60.0 MiB of 64.0 MiB are free: "
    runner = runner_on(Card(), model_path)
    with monkeypatch.context() as patch:
        patch.setattr(StepRunner, "capture", none_left)
        text = f"no memory for the KV pool with captured steps {where}lower memory_ratio or num_blocks, or end what"
        refused(lambda: runner.allocate(4), OutOfMemory, text)
        patch.setattr(Card, "taken", none_left)
        refused(
            runner.size, OutOfMemory, f"no memory for the largest step {where}lower max_prefill_tokens or max_batch"
        )
        patch.setattr(Packer, "pack", none_left)
        refused(
            lambda: runner_on(Card(), model_path), OutOfMemory, f"no memory for the weights {where}set weight_quant"
        )


@pytest.mark.parametrize("error", [209, 218, 222])
def test_a_library_without_code_for_the_card_is_refused(
    model_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(self: Card, op: str, args: Any) -> None:
        raise NativeError(f"{op}: no kernel image", code=Code.DEVICE_ERROR, device_error=error)

    monkeypatch.setattr(Card, "launch", launch)
    text = "config.device_list = [0]: cuda:0 has compute capability 9.0, and core_cuda has no code for that: build it"
    refused(lambda: runner_on(Card(), model_path), InvalidArgument, text, "make cuda-all")


def test_other_device_errors_pass_unchanged(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    monkeypatch.setattr(card.native.handle, "core_copy_blocks", lambda args, stream: Code.DEVICE_ERROR | 700 << 8)
    with pytest.raises(NativeError, match=r"copy_blocks: .* \(device error 700\)") as raised:
        runner_on(card, model_path)
    assert raised.value.device_error == 700
