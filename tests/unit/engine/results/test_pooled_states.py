"""The pooled last hidden states of a prompt."""

from __future__ import annotations

from array import array

import pytest
from headrace_engine.engine.results.pooled_states import PooledStates
from headrace_engine.ipc.step_output import PooledPiece


def piece(position: int, end: int, *values: float) -> PooledPiece:
    return PooledPiece(1, position, end, array("d", values).tobytes())


def test_a_mean_is_the_sum_by_the_number_of_tokens() -> None:
    states = PooledStates(0, 5)
    states.add(piece(0, 3, 3.0, 6.0))
    assert (states.complete, states.position) == (False, 3)
    states.add(piece(3, 5, 2.0, -1.0))
    assert states.complete
    assert list(states.vector(normalize=False)) == [1.0, 1.0]
    assert list(states.vector(normalize=True)) == pytest.approx([0.5**0.5] * 2)


def test_from_the_last_token_on_it_is_that_state() -> None:
    states = PooledStates(4, 5)
    states.add(piece(4, 5, 3.0, 4.0))
    assert list(states.vector(normalize=False)) == [3.0, 4.0]
    assert list(states.vector(normalize=True)) == pytest.approx([0.6, 0.8])


def test_a_zero_vector_stays_what_it_is() -> None:
    states = PooledStates(0, 1)
    states.add(piece(0, 1, 0.0, 0.0))
    assert list(states.vector(normalize=True)) == [0.0, 0.0]


def test_a_gap_is_an_error() -> None:
    with pytest.raises(ValueError, match="known up to token 0, and 2 came"):
        PooledStates(0, 5).add(piece(2, 3, 1.0))
