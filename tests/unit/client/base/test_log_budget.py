"""How often servers log what any caller can cause."""

from __future__ import annotations

from headrace.log_budget import BURST, PER_SECOND, LogBudget


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_f10_a_flood_of_one_kind_is_a_burst_and_then_a_rate() -> None:
    clock = Clock()
    budget = LogBudget(clock)
    assert [budget.spend("flood") for _ in range(BURST + 7)] == [0] * BURST + [None] * 7
    clock.now += 1.25 / PER_SECOND  # 0.125 s, exactly
    assert [budget.spend("flood") for _ in range(3)] == [7, None, None]
    clock.now += 1.0
    assert [budget.spend("flood") for _ in range(int(PER_SECOND) + 1)] == [2] + [0] * (int(PER_SECOND) - 1) + [None]


def test_f10_a_flood_hides_no_other_kind() -> None:
    budget = LogBudget(Clock())
    for _ in range(BURST + 1):
        budget.spend("flood")
    assert (budget.spend("flood"), budget.spend("other")) == (None, 0)


def test_f10_pauses_save_no_more_than_a_burst() -> None:
    clock = Clock()
    budget = LogBudget(clock)
    budget.spend("kind")
    clock.now += 1e6
    assert [budget.spend("kind") for _ in range(BURST + 1)] == [0] * BURST + [None]
