"""Torch's attention in the place of the kernel for prompts that begin in a step, on the simulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.device.flash import FLASH, torch_attention
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.config import KvCacheMode
from headrace_engine.environment import PLAIN_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.ops import Batch, Extent
from headrace_engine.models.spec import LayerSpec
from native.sim_runs import Sequences, plan_for
from support.backends.runners import ready, silent
from support.sim import device as sim
from torch import Tensor
from torch.nn.attention import varlen

pytestmark = pytest.mark.usefixtures("simulator")


@pytest.fixture(autouse=True)
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN_VARIABLE, FLASH)


def ops_of(model_path: Path, window: int | None = None) -> tuple[CudaModel, CudaOps, StepStaging]:
    """One layer's ops over a pool of random keys and values."""
    runner = sim.make_runner(plan_for(model_path))
    runner.load(silent)
    model = runner._model
    assert model is not None
    model = replace(model, spec=replace(model.spec, layers=(LayerSpec(window=window),)))
    pool, staging = model.pool(20), model.staging()
    pool.tensors[0].view(torch.bfloat16).copy_(torch.randn(pool.tensors[0].shape[0], pool.tensors[0].shape[1] // 2))
    return model, model._ops(pool, staging), staging


def batch_of(staging: StepStaging, extents: list[Extent]) -> CudaBatch:
    step = Batch([0] * sum(extent.length for extent in extents), extents, [])
    staging.fill(step)
    return staging.view(step)


@pytest.mark.parametrize("window", [None, 7, 40])
def test_prompts_attend_as_the_kernel_says(model_path: Path, window: int | None, launched: list[str]) -> None:
    """Behind two single rows, of which one is deep in its sequence."""
    model, ops, staging = ops_of(model_path, window)
    extents = [
        Extent(0, 1, 30, (3, 9)),
        Extent(1, 1, 0, (4,)),
        Extent(2, 37, 0, (11, 2, 7)),
        Extent(39, 5, 0, (15,)),
    ]
    batch, q = batch_of(staging, extents), torch.randn(44, model.spec.query_width).bfloat16()
    launched.clear()
    got = ops.paged_attention(0, q, batch)
    assert launched == ["decode_attention"]
    ops._attention._prompts = None
    expected = ops.paged_attention(0, q, batch)
    assert launched[1:] == ["decode_attention", "prefill_attention"]
    assert torch.equal(got[:2], expected[:2])
    assert torch.linalg.norm((got - expected).float()) < 6e-3 * torch.linalg.norm(expected.float())


def test_a_chunk_behind_others_goes_to_the_kernel(model_path: Path, launched: list[str]) -> None:
    model, ops, staging = ops_of(model_path)
    for start, kernel in ((0, []), (16, ["prefill_attention"])):
        batch = batch_of(staging, [Extent(0, 20, 0, (1, 2)), Extent(20, 3, start, (3, 4))])
        launched.clear()
        ops.paged_attention(0, torch.randn(23, model.spec.query_width).bfloat16(), batch)
        assert launched == kernel


def test_whole_models_draw_with_it(model_path: Path, launched: list[str]) -> None:
    """Also in captured steps, and what the largest step takes is measured with it."""
    prompts = [list(range(20)), [5], [9, 8]]
    drawn = []
    for plain in (FLASH, ""):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(PLAIN_VARIABLE, plain)
            launched.clear()
            sequences = Sequences(ready(sim.make_runner(plan_for(model_path, max_batch=3))), prompts)
            assert plain == FLASH or "prefill_attention" in launched  # Captured: such steps are replayed.
            launched.clear()
            sequences.generate(3)
            drawn.append([[sampled.token_id for sampled in each] for each in sequences.drawn])
            assert "prefill_attention" not in launched
    assert sum(one == other for pair in zip(*drawn, strict=True) for one, other in zip(*pair, strict=True)) >= 8


def test_codes_of_keys_and_values_are_refused(model_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=f'{PLAIN_VARIABLE} = "{FLASH}" in the environment takes no codes of keys'
    ):
        ready(sim.make_runner(plan_for(model_path, kv_cache_mode=KvCacheMode.INT8)))


def answering(called: list[Any]) -> tuple[Any, Any]:
    """Torch's function as two of its versions have it: query heads that share keys are asked for by name in one."""

    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
        called.append((cu_seq_q is cu_seq_k, max_q, max_k, scale, window_size))
        return query

    def newer(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
    ):  # type: ignore[no-untyped-def]
        assert enable_gqa
        return older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)

    return older, newer


def test_torch_is_asked_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    q = torch.randn(6, 4, 64)
    for version in answering(called):
        monkeypatch.setattr(varlen, "varlen_attn", version)
        for window, seen in ((0, (-1, 0)), (5, (4, 0))):
            out = torch_attention()(q, q, q, torch.tensor([0, 6]), longest=6, window=window, scale=0.5)
            assert out is q
            assert called.pop() == (True, 6, 6, 0.5, seen)


def test_a_torch_without_such_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
        raise AssertionError("this version knows no windows")

    monkeypatch.setattr(varlen, "varlen_attn", first)
    with pytest.raises(InvalidArgument, match=f'{PLAIN_VARIABLE} = "{FLASH}" .* has no such attention: leave it out'):
        torch_attention()


def test_the_installed_torch_has_such_attention() -> None:
    """Only a card computes it; what it takes can be seen anywhere."""
    assert callable(torch_attention())
