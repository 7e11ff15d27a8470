"""Weights to codes: how near the codes' values are, and how their scales are stored."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.backends.cpu.weights.quantize import quantized, quantized_matrix, scale_type
from headrace_engine.native import Dtype, Format

KINDS = [Format.INT8, Format.INT4]


def weights(rows=9, inputs=100, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


def values_of(rows, kind, group, inputs):
    """What codes, scales and offsets stand for."""
    matrix = quantized_matrix(len(rows.numbers), inputs, kind, group, Dtype.FLOAT32)
    place = np.arange(inputs) // (group or inputs)
    values = rows.scales[:, place] * (rows.numbers.astype(np.float64) - matrix.zero)
    return values if rows.offsets is None else values + rows.offsets[:, place]


@pytest.mark.parametrize("group", [0, 16, 32, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_at_most_half_a_step_off(kind, group):
    """Where the group does not divide the inputs, the last one is shorter."""
    given = weights()
    rows = quantized(given, kind, group)
    error = np.abs(values_of(rows, kind, group, 100) - given)
    assert (error <= 0.501 * rows.scales[:, np.arange(100) // (group or 100)]).all()
    assert rows.numbers.dtype == np.uint8
    assert rows.scales.shape == (9, -(-100 // group) if group else 1)


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_bc110_sizes_that_no_group_divides_are_as_near(kind, group):
    for inputs, outputs in ((31 * group + 17, 5), (group - 1, 7), (group, 1)):
        given = weights(outputs, inputs)
        rows = quantized(given, kind, group)
        error = np.abs(values_of(rows, kind, group, inputs) - given)
        assert (error <= 0.501 * rows.scales[:, np.arange(inputs) // group]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_value_is_exact(kind):
    for value in (0.0, -3.25):
        rows = quantized(np.full((2, 32), value, dtype=np.float32), kind, 16)
        np.testing.assert_allclose(values_of(rows, kind, 16, 32), value, rtol=1e-6)


def test_the_ends_of_a_group_are_exact_with_four_bits():
    given = weights(inputs=64) + 5
    rows = quantized(given, Format.INT4, 32)
    got = values_of(rows, Format.INT4, 32, 64)
    for end in (np.min, np.max):
        groups = end(given.reshape(9, 2, 32), axis=2), end(got.reshape(9, 2, 32), axis=2)
        np.testing.assert_allclose(*groups, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_is_not_finite_is_refused(kind, value):
    given = weights()
    given[3, 50] = value
    with pytest.raises(ValueError, match="not finite"):
        quantized(given, kind, 32)


@pytest.mark.parametrize(
    ("change", "stored"),
    [
        (lambda x: x, Dtype.FLOAT16),
        (lambda x: x * np.float32(1e-9), Dtype.FLOAT32),
        (lambda x: x * np.float32(1e9), Dtype.FLOAT32),
        (lambda x: x * np.float32(1e-3) + np.float32(1), Dtype.FLOAT32),
    ],
    ids=["ordinary", "tiny", "huge", "narrow and far from zero"],
)
def test_scales_are_float16_only_where_it_costs_little(change, stored):
    rows = quantized(change(weights()), Format.INT4, 32)
    assert scale_type(Format.INT4, rows.scales, rows.offsets) is stored
