"""Kernels replaced by plain torch, one after the other: the simulated device says the same without each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.cuda.device.pool import KV_MODES, KvPool, bytes_a_block
from headrace_engine.backends.cuda.plain import plain_ops
from headrace_engine.backends.cuda.plain_pool import plain_entries
from headrace_engine.config import ActivationQuant, KvCacheMode, WeightQuant
from headrace_engine.core.runner import Sampled
from headrace_engine.environment import PLAIN_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.native import Kv
from headrace_engine.native.abi import AppendKv, KvBlocks
from headrace_engine.sampling_params import SamplingParams
from native.kv_pool import MOST, HadamardRotation
from native.sim_runs import Sequences, plan_for
from support.backends.runners import ready, silent
from support.backends.same_tokens import ROUNDING
from support.sim import device as sim
from support.sim.device import SimDevice

DRAWN = SamplingParams(temperature=0.7, seed=5, top_p=0.9, logprobs=True, top_logprobs=2)
LAUNCHES = {
    "rms_norm": {"rms_norm"},
    "layer_norm": {"layer_norm_rows"},
    "gated_rows": {"gated_rows"},
    "gather_rows": {"gather_rows"},
    "append_kv": {"append_kv"},
    "attention": {"decode_attention", "prefill_attention"},
    "quantized_linear": {"quantized_linear"},
    "row_codes": {"quantize_rows", "scaled_sums"},
    "sample_rows": {"sample_rows"},
}
"""Kernels that are launched no more, by the name of the op."""
ALL = ",".join(LAUNCHES)
PROMPTS = [[3, 90, 41, 7, 7, 60, 18], [5], list(range(20, 40))]


pytestmark = pytest.mark.usefixtures("simulator")


@pytest.fixture(scope="module")
def drawn_by_kernels(simulator: None, model_path: Path) -> dict[str, list[list[Sampled]]]:
    """By the way that keys, values and weights are stored: what is drawn without plain ops."""
    return {name: drawn(model_path, changes) for name, changes in STORED.items()}


STORED: dict[str, dict[str, Any]] = {
    "numbers": {},
    "weights": {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32},
    "keys": {"kv_cache_mode": KvCacheMode.INT8},
    "rotated keys": {"kv_cache_mode": KvCacheMode.UINT4},
    "rows": {"weight_quant": WeightQuant.INT8, "activation_quant": ActivationQuant.INT8},
}
"""What is stored in codes."""


def drawn(model_path: Path, changes: dict[str, Any], follow: list[list[int]] | None = None) -> list[list[Sampled]]:
    """Three tokens of each prompt."""
    sequences = Sequences(ready(sim.make_runner(plan_for(model_path, max_batch=3, **changes))), PROMPTS, follow=follow)
    for _ in range(3):
        sequences.step([0, 1, 2], DRAWN)
    return sequences.drawn


@pytest.mark.parametrize(
    ("plain", "stored"),
    [
        *((name, {"quantized_linear": "weights", "row_codes": "rows"}.get(name, "numbers")) for name in LAUNCHES),
        (ALL, "weights"),
        (ALL, "keys"),
        ("append_kv", "rotated keys"),
        ("attention", "rotated keys"),
    ],
)
def test_what_is_drawn_is_the_same_without_each_kernel(
    plain: str,
    stored: str,
    model_path: Path,
    drawn_by_kernels: dict[str, list[list[Sampled]]],
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each token after those of the kernels, and what was likely in its place."""
    monkeypatch.setenv(PLAIN_VARIABLE, plain)
    expected = drawn_by_kernels[stored]
    got = drawn(model_path, STORED[stored], [[sampled.token_id or 0 for sampled in each] for each in expected])
    replaced = {kernel for name in plain.split(",") for kernel in LAUNCHES[name]}
    assert not replaced & set(launched)
    pairs = [pair for each in zip(got, expected, strict=True) for pair in zip(*each, strict=True)]
    assert sum(one.token_id == other.token_id for one, other in pairs) >= 8, "rounding moves one of nine at most"
    logprobs = np.array([[[logprob for _, logprob in each.top] for each in pair] for pair in pairs])
    difference = np.sqrt(np.mean((logprobs[:, 0] - logprobs[:, 1]) ** 2))
    assert difference < (6 if stored == "rotated keys" else 2) * ROUNDING["bfloat16"], "keys may have other codes"


def test_only_ops_that_need_the_host_prevent_captured_steps(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for plain, captured in (("rms_norm,gated_rows,gather_rows, append_kv", True), ("attention", False)):
        monkeypatch.setenv(PLAIN_VARIABLE, plain)
        runner = ready(sim.make_runner(plan_for(model_path, max_batch=1)))
        assert runner._steps is not None  # type: ignore[attr-defined]
        assert (runner._steps._graphs is not None) == captured  # type: ignore[attr-defined]


def test_a_wrong_name_is_refused(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_ops({}) == plain_ops({PLAIN_VARIABLE: " ,"}) == frozenset()
    monkeypatch.setenv(PLAIN_VARIABLE, "rms_norm,norm")
    with pytest.raises(
        InvalidArgument, match=f'{PLAIN_VARIABLE} = "norm" .* is not an op; allowed: rms_norm, layer_norm, gated_rows, '
    ):
        sim.make_runner(plan_for(model_path)).load(silent)


@pytest.mark.parametrize("mode", list(KV_MODES))
def test_plain_torch_and_kernels_lay_out_the_same_blocks(mode: KvCacheMode) -> None:
    device = SimDevice()
    shape = KvBlocks(kv_heads=2, head_dim=80, block_size=16, kv=KV_MODES[mode])
    pools = [KvPool(shape, bytes_a_block(device.native, shape), 1, 3, device.torch) for _ in range(2)]
    k, v = torch.randn(2, 20, 160).bfloat16()
    slots = torch.arange(12, 32, dtype=torch.int32)
    q_out = torch.empty(20, 160, dtype=torch.bfloat16)
    args = AppendKv(
        q=k.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), slots=slots.data_ptr(), q_out=q_out.data_ptr(),
        blocks=pools[0].layer(0), q_stride=160, k_stride=160, v_stride=160, tokens=20, heads=2,
    )  # fmt: skip
    device.launch("append_kv", args)
    entries = plain_entries(pools[1].tensors[0], shape)
    for stored, rows in zip(entries, (k, v), strict=True):
        stored.put(slots // 16, slots % 16, rows.view(20, 2, 80))
    assert torch.equal(pools[0].tensors[0], pools[1].tensors[0])
    table = torch.tensor([[1, 0]])
    spread = HadamardRotation(Kv(shape.kv), 80)
    for stored, rows in zip(entries, (k, v), strict=True):
        gathered = stored.outputs(stored.gather(table)[0])  # [kv_heads, 32, head_dim]: block 1, then block 0
        wanted = torch.cat([rows[4:], rows[:4]]).view(20, 2, 80).transpose(0, 1).float()
        found = torch.cat([gathered[:, :16], gathered[:, 28:]], 1)
        low, high = spread.rotate(wanted).aminmax(dim=2, keepdim=True)
        half_step = (high - low) / MOST[Kv(shape.kv)] / 2 if Kv(shape.kv) in MOST else torch.zeros_like(high)
        assert ((found - wanted).abs() <= half_step * (1 + 1e-4)).all()
