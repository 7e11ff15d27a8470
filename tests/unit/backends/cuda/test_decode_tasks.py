"""How decode attention is shared out: the ranges of tokens, by the lengths of sequences."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from headrace_engine.backends.cuda.decode_tasks import MOST_SHARERS, PART_TOKENS, DecodeTasks
from headrace_engine.models.spec import DecoderSpec, LayerSpec, RopeSpec
from hypothesis import given
from hypothesis import strategies as st

LONGEST = 131_072
SPEC = DecoderSpec("tiny", 32, 8, 4, 2, 64, 12, 1e-5, (RopeSpec(1e4, 64),), (LayerSpec(),) * 2, LONGEST)

lengths = st.lists(st.one_of(st.integers(0, 3000), st.integers(0, LONGEST)), min_size=1, max_size=12)
windows = st.sampled_from((None, 1, 20, 512, 4096))


def spec_with(*window: int | None, kv_heads: int = 2) -> DecoderSpec:
    layers = tuple(LayerSpec(window=each) for each in window)
    return replace(SPEC, num_heads=2 * kv_heads, num_kv_heads=kv_heads, layers=layers)


def ranges(tasks: DecodeTasks, layer: int, stored: list[int]) -> list[list[tuple[int, int]]]:
    """The ranges of each sequence, in order; table rows are the numbers of sequences and 100 more."""
    lists, every = tasks.share(np.array(stored), np.arange(len(stored)) + 100)
    first, count = lists[tasks.list_of(layer)]
    found: list[dict[int, tuple[int, int]]] = [{} for _ in stored]
    for sequence, table, begin, end, part, parts in every[first : first + count].tolist():
        assert table == sequence + 100
        assert part not in found[sequence], "a part is listed twice"
        assert 1 <= parts <= tasks.most_parts
        found[sequence][part] = begin, end
    for sequence, table, *_, parts in every[first : first + count].tolist():
        assert len(found[sequence]) == parts, table
    return [[parts[number] for number in range(len(parts))] for parts in found]


@given(lengths, windows, st.sampled_from((1, 2, 8, 32)))
def test_ranges_cover_what_a_row_sees_and_meet(stored: list[int], window: int | None, kv_heads: int) -> None:
    tasks = DecodeTasks(spec_with(window, kv_heads=kv_heads), LONGEST)
    for length, parts in zip(stored, ranges(tasks, 0, stored), strict=True):
        assert parts[0][0] == (max(0, length - window) if window else 0)
        assert parts[-1][1] == length
        assert all(end == begin and end % 16 == 0 for (_, end), (begin, _) in pairwise(parts))
        assert all(begin < end for begin, end in parts) or length == 0
        assert len(parts) * kv_heads <= max(MOST_SHARERS, kv_heads)


@given(lengths, windows)
def test_parts_depend_on_a_sequence_alone(stored: list[int], window: int | None) -> None:
    """Neither on what is computed beside it nor on how long sequences may become."""
    tasks, short = (DecodeTasks(spec_with(window), longest) for longest in (LONGEST, max(16, *stored)))
    together = ranges(tasks, 0, stored)
    assert together == ranges(short, 0, stored)
    assert together == [ranges(tasks, 0, [length])[0] for length in stored]


@given(lengths)
def test_work_is_that_of_the_tokens_there(stored: list[int]) -> None:
    _, every = DecodeTasks(spec_with(None), LONGEST).share(np.array(stored), np.arange(len(stored)))
    assert len(every) <= len(stored) + sum(stored) // PART_TOKENS


def test_layers_share_the_list_of_their_window() -> None:
    tasks = DecodeTasks(spec_with(64, None, 64, 1024), LONGEST)
    assert tasks.lists == 3
    seen = [ranges(tasks, layer, [5000])[0][0][0] for layer in range(4)]
    assert seen == [4936, 0, 4936, 3976]


@pytest.mark.parametrize(("longest", "parts"), [(100, 1), (4096, 8), (LONGEST, 128)])
def test_room_for_parts_ends_with_what_a_sequence_takes(longest: int, parts: int) -> None:
    tasks = DecodeTasks(spec_with(None), longest)
    assert tasks.most_parts == parts
    assert len(ranges(tasks, 0, [longest])[0]) == parts


def test_whole_parts_are_taken_first() -> None:
    _, every = DecodeTasks(spec_with(None), LONGEST).share(np.array([100, 1100, 7]), np.arange(3))
    assert [end - first for _, _, first, end, _, _ in every.tolist()] == [512, 512, 100, 76, 7]
