"""The cpu backend's rotary tables against the torch backend's."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.backends.cpu import rope
from headrace_engine.backends.cpu.rope import inverse_frequencies, rotary_tables
from headrace_engine.backends.torch import rope as oracle
from headrace_engine.config import RopeScalingType
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import RopeSpec

SCALINGS = {
    "none": {},
    "linear": {"scaling": RopeScalingType.LINEAR, "factor": 4.0},
    "llama3": {"scaling": RopeScalingType.LLAMA3, "factor": 8.0, "original_max_length": 8192},
    "factors": {"frequency_factors": tuple(1 + place / 7 for place in range(32))},
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("theta", [1e4, 1.5e5, 5e5])
def test_frequencies_are_the_torch_backends_to_a_few_last_places(theta, scaling):
    spec = RopeSpec(theta, 64, **SCALINGS[scaling])
    mine = inverse_frequencies(spec)
    assert mine.dtype == np.float32
    np.testing.assert_allclose(mine, oracle.inverse_frequencies(spec).numpy(), rtol=4e-7)


def test_tables_hold_cosines_and_sines_of_every_position():
    tables = rotary_tables(RopeSpec(1e4, 64), 3000)
    assert tables.cos.shape == tables.sin.shape == (3000, 32)
    assert tables.nbytes == 2 * 3000 * 32 * 4
    angles = np.outer(np.arange(3000, dtype=np.float64), 1e4 ** (-np.arange(0, 64, 2) / 64))
    np.testing.assert_allclose(tables.cos, np.cos(angles), atol=2e-4)
    np.testing.assert_allclose(tables.sin, np.sin(angles), atol=2e-4)
    assert (tables.cos[0] == 1).all()


def test_f5_tables_are_made_piece_by_piece_to_the_same_bits(monkeypatch):
    whole = rotary_tables(RopeSpec(1e4, 64), 3000)
    monkeypatch.setattr(rope, "_AT_ONCE", 128)
    pieces = rotary_tables(RopeSpec(1e4, 64), 3000)
    assert (pieces.cos == whole.cos).all()
    assert (pieces.sin == whole.sin).all()


def test_a_scaling_that_is_not_built_is_refused():
    with pytest.raises(InvalidArgument, match="is not supported; allowed: MODEL, LINEAR, LLAMA3"):
        inverse_frequencies(RopeSpec(1e4, 64, scaling=RopeScalingType.YARN))
