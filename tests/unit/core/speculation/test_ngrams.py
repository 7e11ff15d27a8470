"""The n-gram look-up against a plain search."""

from __future__ import annotations

from headrace_engine.core.speculation.ngrams import Ngrams
from hypothesis import given
from hypothesis import strategies as st

few = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def looked_up(ids: list[int], cuts: list[int], most: int = 4) -> list[int]:
    """The continuation, where the ids came in several parts and each part was looked up."""
    found, ngrams = [], Ngrams()
    for end in sorted({*(cut % len(ids) + 1 for cut in cuts), len(ids)}):
        ngrams.follow(ids[:end])
        found = ngrams.continuation(ids[:end], most)
    return found


@given(ids=few)
def test_a_first_look_up_finds_the_last_occurrence(ids: list[int]) -> None:
    for size in (4, 2):
        ends = [end for end in range(size, len(ids)) if ids[end - size : end] == ids[-size:] and len(ids) >= size]
        if ends:
            text = list(ids)
            for offset in range(4):
                text.append(text[ends[-1] + offset])
            assert looked_up(ids, []) == text[len(ids) :]
            return
    assert looked_up(ids, []) == []


@given(ids=few, cuts=st.lists(st.integers(0, 59), max_size=20), most=st.integers(1, 15))
def test_later_ones_continue_some_occurrence(ids: list[int], cuts: list[int], most: int) -> None:
    """The latest two ids stand before what is found, or before what it repeats."""
    found = looked_up(ids, cuts, most)
    assert len(found) in (0, most)
    text = [*ids, *found]
    if found:
        places = [i for i in range(2, len(ids)) if ids[i - 2 : i] == ids[-2:] and text[i : i + most] == found]
        assert places


def test_ids_with_bytes_in_common_are_told_apart() -> None:
    """256 and 1 have the same bytes at another place."""
    assert looked_up([256, 256, 7, 1, 1, 9, 256, 256], []) == [7, 1, 1, 9]
    assert looked_up([0, 0, 7, 5, 0, 0], [], 2) == [7, 5]
