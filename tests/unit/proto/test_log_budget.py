"""How often servers log what any caller can cause."""

from __future__ import annotations

from headrace_proto.pure.log_budget import BURST, PARTIES, PER_SECOND, REMEMBERED, REPEAT_SECONDS, LogBudget


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


def test_f10_a_flood_of_one_party_hides_no_other_party() -> None:
    budget, share = LogBudget(Clock()), BURST // PARTIES
    assert [budget.spend("kind", party="a") for _ in range(BURST)] == [0] * share + [None] * (BURST - share)
    assert [budget.spend("kind", party="b") for _ in range(2)] == [BURST - share, 0]
    assert budget.spend("other", party="a") == 0


def test_f10_many_parties_together_are_bounded_as_one() -> None:
    budget = LogBudget(Clock())
    reported = [budget.spend("kind", party=f"p{number}") for number in range(2 * REMEMBERED)]
    assert reported == [0] * BURST + [None] * (2 * REMEMBERED - BURST)
    assert len(budget._parties) == REMEMBERED


def test_f10_pauses_save_no_more_than_a_burst() -> None:
    clock = Clock()
    budget = LogBudget(clock)
    budget.spend("kind")
    clock.now += 1e6
    assert [budget.spend("kind") for _ in range(BURST + 1)] == [0] * BURST + [None]


def test_who_asks_again_and_again_is_logged_once_a_minute() -> None:
    clock = Clock()
    budget = LogBudget(clock)
    reported = []
    for _ in range(2 * int(REPEAT_SECONDS)):
        reported.append([budget.spend("refused", handle) for handle in ("h1", "h2")])
        clock.now += 1.0
    assert [line for line in reported if line != [None, None]] == [[0, 0], [2 * (int(REPEAT_SECONDS) - 1), 0]]
    assert budget.spend("other", "h1") == 0
    assert [budget.spend("refused") is None for _ in range(2)] == [False, False]


def test_what_lines_were_about_is_forgotten_one_day() -> None:
    clock = Clock()
    budget = LogBudget(clock)
    for number in range(REMEMBERED + 1):
        clock.now += 1.0 / PER_SECOND
        assert budget.spend("refused", f"h{number}") is not None
    assert budget.spend("refused", f"h{REMEMBERED}") is None
    assert budget.spend("refused", "h0") is not None
    assert len(budget._logged) == REMEMBERED
