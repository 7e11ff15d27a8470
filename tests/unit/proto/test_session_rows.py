"""Step batches, taken apart and picked from."""

from __future__ import annotations

import pytest
from headrace_proto.v1.session_pb2 import RowDetails, StepBatch
from headrace_proto.wire.session_rows import Columns

STEP = StepBatch(
    channels=[4, 2, 9],
    positions=[10, 0, 7],
    counts=[2, 1, 3],
    token_ids=[1, 2, 3, 4, 5, 6],
    texts=["ab", "c", "def"],
    checksums=[11, 12, 13],
    details=[RowDetails(row=2, logprobs={})],
)


def changed(**fields: object) -> StepBatch:
    step = StepBatch()
    step.CopyFrom(STEP)
    for name, value in fields.items():
        step.ClearField(name)
        getattr(step, name).extend(value)
    return step


def test_rows_have_their_own_ids_and_details() -> None:
    columns = Columns(STEP)
    assert [columns.ids(row) for row in range(3)] == [[1, 2], [3], [4, 5, 6]]
    assert columns.details(0) is None
    assert columns.details(2) == STEP.details[0]
    assert columns.details(2) is not columns.details(2)
    assert columns.all_ids() == [[1, 2], [3], [4, 5, 6]]
    assert columns.all_details() == [None, None, STEP.details[0]]


def test_rows_of_one_token_each_have_lists_of_one() -> None:
    columns = Columns(changed(counts=[1, 1, 1], token_ids=[7, 8, 9], details=[]))
    assert columns.all_ids() == [[7], [8], [9]]
    assert columns.all_details() == [None, None, None]


def test_picked_rows_are_a_batch_under_other_channels() -> None:
    picked = Columns(STEP).pick([0, 2], [1, 5])
    assert list(picked.channels) == [1, 5]
    assert list(picked.positions) == [10, 7]
    assert list(picked.token_ids) == [1, 2, 4, 5, 6]
    assert list(picked.texts) == ["ab", "def"]
    assert [details.row for details in picked.details] == [1]


def test_all_rows_picked_are_the_same_batch() -> None:
    assert Columns(STEP).pick([0, 1, 2], [4, 2, 9]) == STEP


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (changed(positions=[1]), "columns have .3, 1, 3, 3, 3. entries"),
        (changed(token_ids=[1, 2]), "2 ids for 6"),
        (changed(counts=[3, 0, 3]), "a row without tokens"),
        (changed(details=[RowDetails(row=3)]), "details of a row that it lacks"),
    ],
)
def test_columns_that_do_not_fit_are_refused(step: StepBatch, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Columns(step)
