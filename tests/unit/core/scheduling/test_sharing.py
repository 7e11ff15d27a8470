"""How prompts share steps: nobody waits for a long one, long ones advance together, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from headrace_engine.block_keys import Scope
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.scheduling.schedule import Limits
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.scheduling.sharing import AGE, AT_ONCE
from headrace_engine.ipc.commands import AddSequence
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.delayed_runner import DelayedRig
from support.core.rig import Rig
from support.core.simulated import GREEDY
from unit.core.conftest import MakeRig
from unit.core.scheduling.test_fairness import started, unlike

LARGE = {"max_length": 8192, "num_blocks": 4096, "max_prefill_tokens": 64}


def computed(rig: Rig, key: int) -> int:
    """Ids of a sequence that has not ended whose keys and values are there."""
    sequence = rig.core._scheduler.find(key)
    assert sequence is not None
    return sequence.computed


@pytest.mark.parametrize("kind", [Rig, DelayedRig])
def test_a1_short_requests_start_next_step_beside_long_prompts(kind: type[Rig]) -> None:
    rig = kind(**LARGE)
    long = rig.add(unlike(1, 8000), 1)
    rig.steps(3)
    short = [rig.add(unlike(10 + i, 3), 4) for i in range(5)]
    rig.steps(3)
    assert set(short) <= set(started(rig))
    assert all(len(rig.tokens[key]) >= 2 for key in short)
    rig.steps(4)
    assert set(short) <= set(rig.ended)
    assert long not in rig.ended
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()


def test_a1_a_higher_priority_goes_before_a_prompt_under_way(make_rig: MakeRig) -> None:
    """All of the step is its own, however long it is; the other one goes on where it stood."""
    rig = make_rig(**LARGE)
    low = rig.add(unlike(1, 8000), 1)
    rig.steps(3)
    before = computed(rig, low)
    high = rig.add(unlike(2, 640), 2, priority=10)
    rig.steps(10)
    assert len(rig.tokens[high]) == 1
    assert computed(rig, low) == before
    rig.run()
    rig.assert_all_complete()


def test_a1_lower_priorities_get_a_block_now_and_then(make_rig: MakeRig) -> None:
    rig = make_rig(**LARGE)
    low = rig.add(unlike(1, 100), 1)
    rig.step()
    rig.add(unlike(2, 8000), 1, priority=10)
    before = computed(rig, low)
    rig.steps(AGE)
    assert computed(rig, low) == before + rig.plan.block_size
    rig.run()
    rig.assert_all_complete()


def test_a1_long_prompts_advance_together(make_rig: MakeRig) -> None:
    """The shortest rest has most of each step, and every one of the others a turn."""
    rig = make_rig(**LARGE)
    keys = [rig.add(unlike(i, 2000 + 500 * i), 1) for i in range(AT_ONCE)]
    rig.steps(20)
    done = [computed(rig, key) for key in keys]
    assert min(done) > 20 * 64 / 4 / AT_ONCE / 2
    assert done[0] > sum(done[1:])
    rig.run()
    assert list(rig.ended) == keys
    rig.assert_all_complete()


def test_a1_a_bounded_number_of_long_prompts_holds_blocks(make_rig: MakeRig) -> None:
    """Others wait, whatever their number, and short ones still start at once."""
    rig = make_rig(max_batch=32, **LARGE)
    for i in range(20):
        rig.add(unlike(i, 500), 1)
    rig.steps(2)
    assert rig.stat.running == AT_ONCE
    short = rig.add(unlike(50, 3), 2)
    rig.step()
    assert len(rig.tokens[short]) == 1
    rig.run()
    rig.assert_all_complete()


def test_a1_short_ones_go_first_where_slots_are_few(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=1, **LARGE)
    first = rig.add(unlike(1, 100), 8)
    rig.step()
    long, short = rig.add(unlike(2, 500), 2), rig.add(unlike(3, 20), 2)
    rig.run()
    assert started(rig) == [first, short, long]
    rig.assert_all_complete()


@pytest.mark.parametrize(("priority", "most"), [(0, 32), (5, 8 * 32)])
def test_a1_the_longest_is_overtaken_by_a_bounded_number(make_rig: MakeRig, priority: int, most: int) -> None:
    """Of shorter ones, and, much later, of those of a higher priority."""
    rig = make_rig(max_batch=1, **LARGE)
    rig.add(unlike(0, 3), 2)
    rig.step()
    long = rig.add(unlike(1, 200), 2)
    for i in range(most + 8):
        rig.add(unlike(100 + i, 3), 1, priority=priority)
    rig.run()
    assert most <= started(rig).index(long) <= most + 2
    rig.assert_all_complete()


@dataclass(frozen=True)
class Wanted:
    """A request of the property below."""

    length: int
    new: int
    priority: int


class Load:
    """A scheduler whose rows are computed at once."""

    def __init__(self, budget: int) -> None:
        limits = Limits(max_batch=4, max_tokens=budget, patience=4, lookahead=4, caching=False)
        self.scheduler = Scheduler(BlockPool(200, 4), limits, Scope())
        self._keys = count()

    def add(self, wanted: Wanted) -> Sequence:
        key = next(self._keys)
        prompt = tuple(unlike(key, wanted.length))
        return self.scheduler.add(AddSequence(key, prompt, GREEDY, wanted.new, priority=wanted.priority))

    def step(self) -> None:
        schedule = self.scheduler.schedule()
        for row in schedule.rows:
            draws = row.count == row.sequence.remaining
            self.scheduler.advance(row.sequence, row.count)
            if draws:
                self.scheduler.append(row.sequence, 7)
                if row.sequence.finish_reason:
                    self.scheduler.end(row.sequence)

    def assert_all_advance(self) -> None:
        """No prompt under way has computed nothing for longer than the age bound, and one more for each rival."""
        running = self.scheduler._live.running
        for sequence in running:
            idle = self.scheduler._steps - sequence.advanced
            assert sequence.remaining <= 1 or idle <= AGE + len(running), f"{sequence.key} is idle for {idle} steps"


wishes = st.builds(Wanted, st.integers(1, 40), st.integers(1, 3), st.integers(-2, 2))


@settings(max_examples=40, deadline=None)
@given(
    first=st.lists(wishes, min_size=1, max_size=5),
    flood=st.lists(wishes, min_size=1, max_size=4),
    budget=st.sampled_from([4, 5, 8, 16, 64]),
)
def test_t5_nobody_waits_for_ever_however_many_come(first: list[Wanted], flood: list[Wanted], budget: int) -> None:
    """Each step as many come as may wait; all who came before them end nevertheless."""
    load = Load(budget)
    kept = [load.add(wanted) for wanted in first]
    for _ in range(3000):
        while load.scheduler.stat.waiting < 12:
            for wanted in flood:
                load.add(wanted)
        load.step()
        load.assert_all_advance()
        if all(sequence.status is SequenceStatus.ENDED for sequence in kept):
            break
    assert all(sequence.status is SequenceStatus.ENDED for sequence in kept)
    load.scheduler.check_integrity()
