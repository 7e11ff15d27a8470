"""Numbers that may be used once."""

from __future__ import annotations

import random

import pytest
from headrace_proto.pure.used_numbers import UsedNumbers


def test_each_number_from_1_can_be_used_once() -> None:
    numbers = UsedNumbers()
    assert not numbers.use(0)
    assert not numbers.use(-1)
    assert [numbers.use(number) for number in (1, 3, 3, 2, 1, 2**32 - 1, 2**32 - 1)] == [
        True, True, False, True, False, True, False,
    ]  # fmt: skip


def test_numbers_in_order_take_no_memory() -> None:
    numbers = UsedNumbers()
    assert all(numbers.use(number) for number in range(1, 50_000))
    assert not any(numbers.use(number) for number in (0, 1, 1023, 1024, 49_999))
    assert len(numbers._pages) == 1


def test_others_take_a_bit_each() -> None:
    numbers = UsedNumbers()
    assert all(numbers.use(number) for number in range(2, 50_000, 2))
    assert len(numbers._pages) == 49
    assert all(numbers.use(number) for number in range(1, 50_000, 2))
    assert len(numbers._pages) == 1


def test_pages_with_gaps_are_bounded() -> None:
    """Numbers far apart take no more memory than so many pages; the lowest gaps are given up for it."""
    numbers = UsedNumbers()
    assert all(numbers.use(number) for number in range(5, 2**32, 2**20))
    assert len(numbers._pages) <= 256
    newest = range(5, 2**32, 2**20)[-256:]
    assert not any(numbers.use(number) for number in (1, 5, 6, *newest))
    assert all(numbers.use(number + 1) for number in newest[1:])
    assert not numbers.use(newest[0] - 2**20 + 1)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_is_as_a_set_has_it(seed: int) -> None:
    source, numbers, used = random.Random(seed), UsedNumbers(), {0}
    for _ in range(20_000):
        number = source.randrange(5_000)
        assert numbers.use(number) is (number not in used)
        used.add(number)
