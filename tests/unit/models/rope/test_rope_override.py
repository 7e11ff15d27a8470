"""Rotary scaling that a caller asks for at install."""

from __future__ import annotations

import math

import pytest
from headrace_engine.config import RopeScaling, RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.rope.override import apply_rope_scaling
from unit.models.test_families import LLAMA3, read


def test_linear_stretches_the_length() -> None:
    spec = apply_rope_scaling(read(), RopeScaling(RopeScalingType.LINEAR, factor=2.5))
    assert (spec.ropes[0].scaling, spec.ropes[0].factor, spec.ropes[0].theta) == (RopeScalingType.LINEAR, 2.5, 50_000.0)
    assert spec.max_length == 10_240


def test_llama3_takes_the_models_length_and_the_usual_factors() -> None:
    spec = apply_rope_scaling(read(), RopeScaling(RopeScalingType.LLAMA3, factor=4))
    rope = spec.ropes[0]
    assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_length) == (1.0, 4.0, 4096)
    assert spec.max_length == 16_384


def test_llama3_keeps_the_models_own_factors() -> None:
    scaled = read(rope_scaling={"rope_type": "llama3", **LLAMA3, "high_freq_factor": 3.0})
    rope = apply_rope_scaling(scaled, RopeScaling(RopeScalingType.LLAMA3, factor=2)).ropes[0]
    assert (rope.factor, rope.high_freq_factor, rope.original_max_length) == (2, 3.0, 1024)


def test_a_scaled_model_is_stretched_from_its_first_length() -> None:
    scaled = read(rope_scaling={"type": "linear", "factor": 4.0})
    assert apply_rope_scaling(scaled, RopeScaling(RopeScalingType.LINEAR, factor=8)).max_length == 8192


def test_model_means_no_change() -> None:
    assert apply_rope_scaling(read(), RopeScaling(RopeScalingType.MODEL)) == read()
    assert apply_rope_scaling(read(), RopeScaling()) == read()


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        (RopeScaling(RopeScalingType.LINEAR), "factor"),
        (RopeScaling(RopeScalingType.LINEAR, factor=0.5), "factor"),
        (RopeScaling(RopeScalingType.LINEAR, factor=float("inf")), "factor"),
        (RopeScaling(RopeScalingType.LINEAR, factor=2, original_max_length=8), "original_max_length"),
        (RopeScaling(RopeScalingType.LINEAR, factor=2, beta_fast=32), "beta_fast"),
        (RopeScaling(RopeScalingType.LLAMA3, factor=2, attention_factor=1), "attention_factor"),
        (RopeScaling(RopeScalingType.LLAMA3, factor=2, low_freq_factor=5), "high_freq_factor"),
        (RopeScaling(RopeScalingType.LLAMA3, factor=2, original_max_length=0), "original_max_length"),
        (RopeScaling(RopeScalingType.YARN, factor=2, beta_slow=0), "beta_slow"),
        (RopeScaling(RopeScalingType.YARN, factor=2, attention_factor=float("inf")), "attention_factor"),
        (RopeScaling(RopeScalingType.YARN, factor=2, attention_factor=1e300), "attention_factor"),
        (RopeScaling(RopeScalingType.YARN, factor=2, beta_fast=1e308), "beta_fast"),
        (RopeScaling(RopeScalingType.YARN, factor=2, beta_slow=1e-320), "beta_slow"),
        (RopeScaling(RopeScalingType.LLAMA3, factor=2, high_freq_factor=1e300), "high_freq_factor"),
        (RopeScaling(RopeScalingType.YARN, factor=2, low_freq_factor=1), "low_freq_factor"),
        (RopeScaling(RopeScalingType.DYNAMIC, factor=2, beta_fast=1), "beta_fast"),
        (RopeScaling(RopeScalingType.MODEL, factor=2), "factor"),
        (RopeScaling(factor=2), "factor"),
    ],
)
def test_factors_that_do_not_fit_are_refused_by_field(scaling: RopeScaling, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        apply_rope_scaling(read(), scaling)
    assert caught.value.violations[0].field == f"config.rope_scaling.{field}"
    assert caught.value.reason == "INVALID_FIELD"


def test_yarn_takes_the_models_length_and_the_usual_factors() -> None:
    spec = apply_rope_scaling(read(), RopeScaling(RopeScalingType.YARN, factor=4))
    rope = spec.ropes[0]
    assert (rope.beta_fast, rope.beta_slow, rope.original_max_length, spec.max_length) == (32, 1, 4096, 16_384)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    given = RopeScaling(RopeScalingType.YARN, 2, 64, attention_factor=1.5, beta_fast=16, beta_slow=2)
    rope = apply_rope_scaling(read(), given).ropes[0]
    assert (rope.attention_factor, rope.beta_fast, rope.beta_slow, rope.original_max_length) == (1.5, 16, 2, 64)


def test_dynamic_takes_the_models_length() -> None:
    spec = apply_rope_scaling(read(), RopeScaling(RopeScalingType.DYNAMIC, factor=2))
    assert (spec.ropes[0].scaling, spec.ropes[0].original_max_length) == (RopeScalingType.DYNAMIC, 4096)
    assert spec.max_length == 8192
