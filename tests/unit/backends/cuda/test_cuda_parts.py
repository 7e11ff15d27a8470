"""What the cuda backend is made of, where no device is needed: batch sizes, staging, weights side by side, cards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headrace_engine.backends.cuda.device.buckets import bucket_of, bucket_sizes, prompt_sizes
from headrace_engine.backends.cuda.device.cards import too_old
from headrace_engine.backends.cuda.device.staging import Staging
from headrace_engine.backends.cuda.weights.fused import side_by_side, spanning
from headrace_engine.models.spec import DecoderSpec, LayerSpec, RopeSpec
from hypothesis import given
from hypothesis import strategies as st


class HostDevice:
    """Memory of the host in place of a device's."""

    torch = torch.device("cpu")

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)


@given(st.integers(1, 2048))
def test_every_batch_has_a_bucket_and_wastes_little(largest: int) -> None:
    sizes = bucket_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    for rows in range(1, largest + 1):
        bucket = bucket_of(sizes, rows)
        assert bucket is not None
        assert 0 <= bucket - rows < max(rows, 16)
    assert bucket_of(sizes, largest + 1) is None


@given(st.integers(1, 2048))
def test_steps_with_prompts_are_padded_by_few_rows(largest: int) -> None:
    sizes = prompt_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(largest, 512)
    for rows in range(1, sizes[-1] + 1):
        bucket = bucket_of(sizes, rows)
        assert bucket is not None
        assert 0 <= bucket - rows < 64


def test_one_copy_moves_all_arrays_up_to_the_used_rows() -> None:
    shapes = {
        "ids": ((3,), np.int32),
        "scores": ((5,), np.float32),
        "seeds": ((2,), np.int64),
        "tables": ((4, 2), np.int32),
    }
    staging = Staging(HostDevice(), shapes)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    sent, other = staging.host[1], staging.host[0]
    for name, (shape, dtype) in shapes.items():
        sent[name][...] = rng.integers(1, 9, shape).astype(dtype)
    staging.send("tables", 3, slot=1)
    assert not any(array.any() for array in other.values()), "the slots share memory"
    for name in ("ids", "scores", "seeds"):
        assert np.array_equal(staging.here[name].numpy(), sent[name])
    assert np.array_equal(staging.here["tables"][:3].numpy(), sent["tables"][:3])
    assert not staging.here["tables"][3:].any(), "more than was asked for was copied"


def test_projections_of_one_input_become_slices_of_one_tensor() -> None:
    spec = DecoderSpec("tiny", 32, 8, 2, 1, 4, 12, 1e-5, (RopeSpec(1e4, 4),), (LayerSpec(),) * 2, 64, qkv_bias=True)
    rows = {"q": 8, "k": 4, "v": 4, "gate": 12, "up": 12, "o": 8}
    weights = {f"layers.{layer}.{name}": torch.randn(count, 8) for layer in (0, 1) for name, count in rows.items()}
    weights |= {f"layers.{layer}.{name}_bias": torch.randn(rows[name]) for layer in (0, 1) for name in "qkv"}
    before = {name: tensor.clone() for name, tensor in weights.items()}
    side_by_side(weights, spec)
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[name], before[name]) for name in before)
    for parts in (("q", "k", "v"), ("gate", "up"), ("q_bias", "k_bias", "v_bias")):
        tensors = [weights[f"layers.1.{part}"] for part in parts]
        assert torch.equal(spanning(tensors), torch.cat(tensors))
        assert spanning(tensors).data_ptr() == tensors[0].data_ptr()


def test_tensors_apart_span_nothing() -> None:
    whole = torch.randn(6, 4)
    with pytest.raises(ValueError, match="one after another"):
        spanning([whole[:2], whole[3:]])
    with pytest.raises(ValueError, match="one after another"):
        spanning([whole[:3, :2], whole[3:, :2]])


def test_a_card_that_is_too_old_is_named_with_what_it_lacks() -> None:
    assert too_old("NVIDIA A100", (8, 0)) == ""
    assert too_old("NVIDIA H100", (9, 0)) == ""
    assert too_old("Tesla T4", (7, 5)).startswith("Tesla T4 has compute capability 7.5, and the kernels need 8.0")
