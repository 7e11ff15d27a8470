"""The torch backend with the native core's norms: the same tokens as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.backends.torch.native_ops import NativeTorchOps
from headrace_engine.config import ComputeDtype
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import NativeUnavailable
from support.backends.same_tokens import ROUNDING, same_tokens
from support.backends.torch_sequences import Lane, Lanes, load, random_ids
from support.models.tiny_models import make_tiny_llama


@pytest.fixture
def native_norms(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the library of this tree the one that is loaded, and notes every norm that it computes."""
    monkeypatch.setenv(NATIVE_VARIABLE, str(libraries))
    called: list[str] = []
    for name in ("rms_norm", "add_rms_norm"):
        original = getattr(NativeTorchOps, name)

        def noted(*args: Any, name: str = name, original: Any = original) -> Any:
            called.append(name)
            return original(*args)

        monkeypatch.setattr(NativeTorchOps, name, noted)
    return called


def generate(path: Path, **plan: object) -> list[Lane]:
    lanes = Lanes(load(path, **plan))
    mine = [lanes.add(random_ids(3 + 4 * number, seed=number), room=24) for number in range(20)]
    lanes.greedy(mine, 24, chunk=30)
    return mine


def test_native_norms_give_the_same_tokens(tmp_path: Path, native_norms: list[str]) -> None:
    path = make_tiny_llama(tmp_path)
    expected = generate(path)
    assert native_norms == []
    got = generate(path, native_ops=True)
    steps = native_norms.count("rms_norm")
    assert steps > 24
    assert native_norms.count("add_rms_norm") == 4 * steps
    scores = [torch.stack(lane.scores) for lane in expected]
    reference, ids = ([lane.ids[-24:] for lane in lanes] for lanes in (expected, got))
    same_tokens(reference, ids, scores, rounding=ROUNDING["float32"])


@pytest.mark.parametrize("dtype", [ComputeDtype.BFLOAT16, ComputeDtype.FLOAT16])
def test_native_norms_in_half_precision_stay_near_torch(
    tmp_path: Path, native_norms: list[str], dtype: ComputeDtype
) -> None:
    path, ids = make_tiny_llama(tmp_path), random_ids(30, seed=1)
    scores = []
    for native_ops in (False, True):
        lanes = Lanes(load(path, dtype=dtype, native_ops=native_ops))
        lane = lanes.add(ids)
        lanes.step((lane, len(ids)))
        scores.append(lane.scores[0].float())
    assert native_norms
    assert (scores[0] - scores[1]).abs().max() < 0.05 * scores[0].abs().max()


def test_a_row_has_the_same_bits_in_any_batch_with_native_norms(tmp_path: Path, native_norms: list[str]) -> None:
    lanes = Lanes(load(make_tiny_llama(tmp_path), native_ops=True))
    prompt = random_ids(50, seed=2)
    whole, parts, other = lanes.add(prompt), lanes.add(prompt), lanes.add(random_ids(9, seed=3))
    lanes.step((whole, 50))
    lanes.step((parts, 33), (other, 4))
    lanes.step((other, 5), (parts, 17))
    assert native_norms
    assert torch.equal(whole.scores[0], parts.scores[0])


def test_without_the_library_native_ops_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tiny_llama(tmp_path / "model")
    monkeypatch.setenv(NATIVE_VARIABLE, str(tmp_path))
    with pytest.raises(NativeUnavailable):
        load(path, native_ops=True)
