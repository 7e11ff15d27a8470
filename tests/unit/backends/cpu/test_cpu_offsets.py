"""Values of a step share places only where neither is needed while the other is."""

from __future__ import annotations

from itertools import pairwise

from headrace_engine.backends.cpu.offsets import Activation, RecordedOp, plan_offsets
from headrace_engine.native import Rows
from hypothesis import given
from hypothesis import strategies as st

COUNTS = {Rows.TOKENS: 10, Rows.LOGITS: 3}


def op(reads, writes, in_place=()):
    return RecordedOp(tuple(reads), tuple(writes), lambda program, places: None, tuple(in_place))


def extent(value, place):
    return place.offset, place.offset + value.width * COUNTS[value.rows]


@st.composite
def steps(draw):
    """Ops that read some earlier values and write new ones, some of them in the place of what they read."""
    values, ops = [], []
    for _ in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(values), max_size=3, unique=True)) if values else []
        rows = draw(st.sampled_from(list(Rows)))
        writes = [Activation(draw(st.integers(1, 40)), rows) for _ in range(draw(st.integers(1, 2)))]
        pairs = []
        if reads and draw(st.booleans()):
            writes[0] = Activation(reads[0].width, reads[0].rows)
            pairs = [(writes[0], reads[0])]
        ops.append(op(reads, writes, pairs))
        values += writes
    return ops


@given(steps())
def test_no_place_is_taken_from_a_value_that_is_still_read(ops):
    places, floats = plan_offsets(ops, COUNTS)
    last_use = {value: number for number, one in enumerate(ops) for value in (*one.writes, *one.reads)}
    allowed = {pair for one in ops for pair in one.in_place}
    live = []
    for number, one in enumerate(ops):
        for value in one.writes:
            begin, end = extent(value, places[value])
            assert begin % 16 == 0
            assert end <= floats
            for other in live:
                first, last = extent(other, places[other])
                inherits = (value, other) in allowed and last_use[other] == number
                assert inherits or end <= first or last <= begin
            live.append(value)
        live = [value for value in live if last_use[value] > number]


def test_a_chain_of_equal_values_takes_two_places():
    values = [Activation(16) for _ in range(20)]
    ops = [op([], values[:1]), *(op([a], [b]) for a, b in pairwise(values))]
    assert plan_offsets(ops, COUNTS)[1] == 2 * 16 * 10


def test_values_computed_in_place_take_no_more_space():
    values = [Activation(16) for _ in range(20)]
    pairs = pairwise(values)
    ops = [op([], values[:1]), *(op([a], [b], [(b, a)]) for a, b in pairs)]
    assert plan_offsets(ops, COUNTS)[1] == 16 * 10


def test_what_is_read_later_is_not_overwritten():
    a, b, c = (Activation(16) for _ in range(3))
    places, floats = plan_offsets([op([], [a]), op([a], [b], [(b, a)]), op([a, b], [c])], COUNTS)
    assert len({places[value].offset for value in (a, b, c)}) == 3
    assert floats == 3 * 16 * 10
