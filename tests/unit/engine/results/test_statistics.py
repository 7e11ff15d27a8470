"""Times and rates of a sequence, and of a model over the last seconds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from headrace_engine.engine.results.statistics import WINDOW, SequenceTimes, StepHistory, percentile
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.stat_types import CoreStat, Counters, PoolStat
from hypothesis import given
from hypothesis import strategies as st
from support.clocks.clock import FakeClock

ARRIVAL = 1000.0


def times(**values: Any) -> SequenceTimes:
    return SequenceTimes(ARRIVAL, 100, **values)


class TestPercentile:
    def test_of_nothing_is_none(self) -> None:
        assert percentile([], 0.5) is None

    @pytest.mark.parametrize(
        ("values", "share", "expected"),
        [
            ([7.0], 0.5, 7.0),
            ([7.0], 0.99, 7.0),
            ([1.0, 3.0], 0.5, 1.0),
            ([3.0, 1.0, 2.0], 0.5, 2.0),
            ([float(v) for v in range(1, 101)], 0.5, 50.0),
            ([float(v) for v in range(1, 101)], 0.99, 99.0),
            ([float(v) for v in range(1, 11)], 0.99, 10.0),
        ],
    )
    def test_is_the_smallest_value_that_the_share_does_not_exceed(
        self, values: list[float], share: float, expected: float
    ) -> None:
        assert percentile(values, share) == expected

    @given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
    def test_at_least_the_share_is_not_above_it_and_less_is_below(self, values: list[float], share: float) -> None:
        found = percentile(values, share)
        assert found in values
        assert sum(value <= found for value in values) >= share * len(values) * (1 - 1e-12)
        assert sum(value < found for value in values) < share * len(values)


class TestSequence:
    def test_before_anything_happened_only_arrival_is_known(self) -> None:
        stat = times().stat(0)
        assert (stat.arrival_time, stat.context_token_length, stat.generated_token_length) == (ARRIVAL, 100, 0)
        assert (stat.preemptions, stat.handovers) == (0, 0)
        unknown = [name for name in stat.__slots__ if getattr(stat, name) is None]
        assert unknown == [
            "scheduled_time",
            "first_token_time",
            "last_token_time",
            "finished_time",
            "time_in_queue",
            "time_to_first_token",
            "context_cached_length",
            "context_tps",
            "generate_tps",
            "inter_token_p50",
            "inter_token_p99",
        ]

    def test_times_are_told_from_arrival(self) -> None:
        sequence = times(scheduled=ARRIVAL + 0.5)
        sequence.token(ARRIVAL + 0.75)
        stat = sequence.stat(1)
        assert stat.time_in_queue == 0.5
        assert stat.time_to_first_token == 0.75

    def test_context_rate_counts_computed_tokens_only(self) -> None:
        sequence = times(scheduled=ARRIVAL + 1, cached_length=60)
        sequence.token(ARRIVAL + 3)
        assert sequence.stat(1).context_tps == 40 / 2

    def test_generation_rate_is_unset_before_the_second_token(self) -> None:
        sequence = times()
        sequence.token(ARRIVAL + 1)
        assert sequence.stat(1).generate_tps is None

    def test_generation_rate_is_that_of_the_tokens_after_the_first(self) -> None:
        sequence = times()
        for number in range(5):
            sequence.token(ARRIVAL + 1 + number * 0.5)
        stat = sequence.stat(5)
        assert stat.generate_tps == 4 / 2
        assert stat.first_token_time == ARRIVAL + 1
        assert stat.last_token_time == ARRIVAL + 3

    def test_gaps_between_tokens(self) -> None:
        sequence = times()
        now = ARRIVAL
        for gap in [1.0, *[0.25] * 98, 2.0, 4.0]:
            now += gap
            sequence.token(now)
        stat = sequence.stat(101)
        assert (stat.inter_token_p50, stat.inter_token_p99) == (0.25, 2.0)

    def test_a_clock_stepping_back_gives_no_negative_times(self) -> None:
        sequence = times(scheduled=ARRIVAL - 2)
        sequence.token(ARRIVAL - 3)
        stat = sequence.stat(1)
        assert (stat.time_in_queue, stat.time_to_first_token, stat.context_tps) == (0.0, 0.0, None)


def step(
    generated: int,
    prefilled: int = 0,
    *,
    running: int = 0,
    pool: PoolStat | None = None,
    duration: float = 0.1,
    batch: int = 1,
    **counters: int,
) -> StepOutput:
    counted = Counters(generated_tokens=generated, prefilled_tokens=prefilled, **counters)
    stat = CoreStat(running=running, pool=pool or PoolStat(), counters=counted)
    return StepOutput(stat=stat, step_time=duration, batch_size=batch)


class TestHistory:
    def test_counters_add_up_over_the_cores_of_a_model(self) -> None:
        history = StepHistory(FakeClock())
        history.new_core()
        history.add(step(5, 100, prefix_cache_hit_tokens=16, prefix_cache_miss_tokens=84))
        found = {"prefix_cache_hit_tokens": 16, "prefix_cache_host_hit_tokens": 8}
        history.add(step(9, 100, **found, prefix_cache_miss_tokens=84))
        history.new_core()
        history.add(step(2, 30, prefix_cache_hit_tokens=0, prefix_cache_miss_tokens=30))
        assert (history.counters.generated_tokens, history.counters.prefilled_tokens) == (11, 130)
        assert (history.counters.prefix_cache_hit_tokens, history.counters.prefix_cache_miss_tokens) == (16, 114)
        assert history.counters.prefix_cache_host_hit_tokens == 8

    def test_every_counter_adds_up(self) -> None:
        history = StepHistory(FakeClock())
        counts = range(1, 1 + len(fields(Counters)))
        for _ in range(2):
            history.new_core()
            history.add(StepOutput(stat=CoreStat(counters=Counters(*counts))))
        assert history.counters == Counters(*(2 * count for count in counts))

    def test_gauges_are_the_newest_steps_and_a_new_core_starts_at_0(self) -> None:
        history = StepHistory(FakeClock())
        history.add(step(1, running=3, pool=PoolStat(blocks_used=7)))
        assert (history.last.running, history.last.pool.blocks_used) == (3, 7)
        history.new_core()
        assert history.last == CoreStat()

    def test_rates_are_means_of_the_last_ten_seconds(self) -> None:
        clock = FakeClock()
        history = StepHistory(clock)
        for number in range(1, 21):
            history.add(step(number * 4, number * 2, duration=number / 100, batch=number % 2 + 1))
            clock.advance(0.5)
        rates = history.rates()
        assert rates.generated_tps == 80 / WINDOW
        assert rates.prefilled_tps == 40 / WINDOW
        assert rates.batch_size == 1.5
        assert (rates.step_time_p50, rates.step_time_p99) == (0.10, 0.20)

    def test_old_steps_are_forgotten_and_counters_stay(self) -> None:
        clock = FakeClock()
        history = StepHistory(clock)
        history.add(step(7))
        clock.advance(WINDOW + 0.01)
        rates = history.rates()
        assert (rates.generated_tps, rates.step_time_p50, rates.step_time_p99, rates.batch_size) == (0, None, None, 0)
        assert history.counters.generated_tokens == 7

    def test_an_output_without_a_step_moves_gauges_and_no_rate(self) -> None:
        """The core tells its gauges once more when it comes to rest."""
        history = StepHistory(FakeClock())
        history.add(step(3))
        history.add(step(3, duration=0.0, batch=0, pool=PoolStat(blocks_free=9)))
        assert history.last.pool.blocks_free == 9
        assert history.rates().step_time_p50 == 0.1
