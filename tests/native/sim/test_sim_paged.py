"""FlashInfer's attention in the place of the kernel for prompts: a stand-in reads the pool as it does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.device.flash import FLASH
from headrace_engine.backends.cuda.device.paged import FlashInfer, PagedPrefill
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.config import KvCacheMode
from headrace_engine.environment import ATTENTION_VARIABLE, PLAIN_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.ops import Batch, Extent
from headrace_engine.models.spec import LayerSpec
from native.sim_runs import Sequences, plan_for, prompts
from support.backends.runners import ready, silent
from support.sim import device as sim
from support.sim.paged import SimPagedAttention, SimPagedMaker

pytestmark = pytest.mark.usefixtures("simulator")

PROMPT = Extent(0, 37, 0, (11, 2, 7))


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTENTION_VARIABLE, "flashinfer")


def model_of(model_path: Path, windows: tuple[int | None, ...]) -> CudaModel:
    runner = sim.make_runner(plan_for(model_path, max_batch=8))
    runner.load(silent)
    model = runner._model
    assert model is not None
    layers = tuple(LayerSpec(window=window) for window in windows)
    return replace(model, spec=replace(model.spec, layers=layers))


def batch_of(staging: StepStaging, extents: list[Extent]) -> CudaBatch:
    step = Batch([0] * sum(extent.length for extent in extents), extents, [])
    staging.fill(step)
    return staging.view(step)


def test_a_step_is_planned_once_for_each_window(model_path: Path) -> None:
    """By a wrapper that no step in flight uses."""
    model = model_of(model_path, (None, 7, None, 7))
    pool, staging, maker = model.pool(20), model.staging(), SimPagedMaker()
    attention = PagedPrefill(maker, pool, model.spec)
    assert len(maker.made) == 4
    used = []
    for _ in range(3):
        before = [wrapper.plans for wrapper in maker.made]
        batch, q = batch_of(staging, [PROMPT]), torch.randn(37, model.spec.query_width).bfloat16()
        assert attention.takes(batch, None)
        assert not attention.takes(batch, torch.zeros(4))
        for layer in range(4):
            attention.attend(layer, q, torch.empty_like(q), batch)
        plans = [wrapper.plans - had for wrapper, had in zip(maker.made, before, strict=True)]
        assert sorted(plans) == [0, 0, 1, 1]
        used.append(plans)
    assert used[0] == used[2] == [1 - plan for plan in used[1]]
    assert sum(wrapper.runs for wrapper in maker.made) == 12


def test_whole_models_draw_with_it(model_path: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in chunks, beside steps of one row each; its outputs are the kernel's but for rounding."""
    drawn = []
    for asked in ("flashinfer", "kernels"):
        monkeypatch.setenv(ATTENTION_VARIABLE, asked)
        launched.clear()
        sequences = Sequences(ready(sim.make_runner(plan_for(model_path, max_batch=4))), prompts(4, 7), chunk=11)
        assert asked == "flashinfer" or "prefill_attention" in launched  # Captured: such steps are replayed.
        launched.clear()
        sequences.generate(4)
        drawn.append([sampled.token_id for each in sequences.drawn for sampled in each])
        assert "prefill_attention" not in launched
    assert sum(one == other for one, other in zip(*drawn, strict=True)) >= 12


def test_the_kernel_takes_codes_of_keys_and_values(
    model_path: Path, launched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    runner = ready(sim.make_runner(plan_for(model_path, kv_cache_mode=KvCacheMode.INT8)))
    assert "keys and values are codes, so kernels compute attention of prompts" in caplog.text
    assert "prefill_attention" in launched
    Sequences(runner, [[1, 2, 3]]).generate(1)


def test_what_cannot_be_is_refused(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN_VARIABLE, FLASH)
    with pytest.raises(InvalidArgument, match=rf'{ATTENTION_VARIABLE} = "flashinfer" and .*leave one of them out'):
        ready(sim.make_runner(plan_for(model_path)))
    monkeypatch.setenv(ATTENTION_VARIABLE, "flash")
    with pytest.raises(InvalidArgument, match=rf'{ATTENTION_VARIABLE} = "flash" .* allowed: kernels, flashinfer'):
        ready(sim.make_runner(plan_for(model_path)))


class TestInstalled:
    """What is installed under FlashInfer's name is opened, or is one clear error."""

    def install(self, monkeypatch: pytest.MonkeyPatch, kind: type | None) -> None:
        module = ModuleType("flashinfer")
        if kind is not None:
            module.BatchPrefillWithPagedKVCacheWrapper = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flashinfer", module)

    def test_it_is_given_the_layout_and_a_workspace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Wrapper(SimPagedAttention):
            def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> None:
                super().__init__()
                assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "HND")

        self.install(monkeypatch, Wrapper)
        opened = FlashInfer(torch.device("cpu"))
        before = opened.nbytes
        assert isinstance(opened.make(), Wrapper)
        assert opened.nbytes > before > 0

    def test_one_that_is_not_there_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.install(monkeypatch, None)
        with pytest.raises(InvalidArgument, match=r"cannot be imported .*pip install headrace-engine\[flashinfer\]"):
            FlashInfer(torch.device("cpu"))

    def test_one_without_a_parameter_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Older(SimPagedAttention):
            def run(self, q: torch.Tensor, paged_kv_cache: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                raise AssertionError("it is not asked")

        self.install(monkeypatch, Older)
        with pytest.raises(InvalidArgument, match=r"run\(\) of the installed flashinfer has no out: update it"):
            FlashInfer(torch.device("cpu"))
