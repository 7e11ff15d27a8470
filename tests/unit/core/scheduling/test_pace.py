"""Steps last as long as they may: the core learns from its own how much of a prompt that is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.scheduling.pace import LONGEST, RELAXED, SHORTEST, TIMES, Pace
from support.core.delayed_runner import DelayedRunner
from support.core.rig import Rig
from support.core.simulated import SimulatedRunner
from unit.core.scheduling.test_fairness import unlike

TARGET = 0.1
LARGE = {"max_length": 8192, "num_blocks": 1024, "max_prefill_tokens": 2048, "block_size": 16, "step_target": TARGET}


class Machine:
    """What the steps of a model take somewhere.

    Attributes:
        base: seconds of any step.
        row: of each token that is generated.
        token: of each id of a prompt.
        pair: of each id and each one before it.
        slower: all of it, times this.
    """

    def __init__(self, base: float, row: float, token: float, pair: float) -> None:
        self.base, self.row, self.token, self.pair = base, row, token, pair
        self.slower = 1.0

    def __call__(self, steps: Sequence[SequenceStep]) -> float:
        seconds = self.base
        for step in steps:
            count = len(step.token_ids)
            middle = step.start + count / 2
            seconds += self.row if count == 1 else count * (self.token + self.pair * middle)
        return seconds * self.slower


SMALL = Machine(0.008, 0.001, 0.001, 2e-7)
"""About SmolLM2-135M on two cores."""
LARGER = Machine(0.1, 0.01, 0.02, 5e-7)
"""About a model of 1.1B there: a step of 2048 takes 41 s."""
FAST = Machine(0.006, 0.0001, 0.00002, 1e-9)
"""About a model of 8B on a large card."""


class TimedRunner(SimulatedRunner):
    machine: Machine = SMALL

    def cost(self, steps: Sequence[SequenceStep]) -> float:  # type: ignore[override]
        return self.machine(steps)


class TimedDelayedRunner(DelayedRunner):
    machine: Machine = SMALL

    def cost(self, steps: Sequence[SequenceStep]) -> float:  # type: ignore[override]
        return self.machine(steps)


def make(machine: Machine, kind: type[SimulatedRunner] = TimedRunner, **changes: object) -> Rig:
    """A core on such a machine."""

    class On(kind):  # type: ignore[valid-type, misc]
        pass

    On.machine = machine

    class TimedRig(Rig):
        make_runner = On

    return TimedRig(**{**LARGE, **changes})


def beside_streams(rig: Rig, prompt: int, streams: int = 1, steps: int = 3) -> int:
    """Have it generate for so many, and after some steps be asked a prompt of another length; its key."""
    for number in range(streams):
        rig.add(unlike(number, 5), 900)
    rig.steps(steps)
    return rig.add(unlike(99, prompt), 1)


def durations(rig: Rig, count: int) -> list[float]:
    """Seconds of each of the next steps."""
    times = [rig.clock()]
    for _ in range(count):
        rig.step()
        times.append(rig.clock())
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("machine", [SMALL, LARGER, FAST], ids=["small", "larger", "fast"])
def test_b1_the_first_steps_of_a_long_prompt_do_not_last(machine: Machine) -> None:
    """Beside nobody they may take longer, so that less time is spent on anything but ids."""
    rig = make(machine)
    rig.add(unlike(1, 2300), 1)
    first = durations(rig, 3)
    assert max(first) < 1.3 * RELAXED * TARGET
    rig.run()
    rig.assert_all_complete()
    largest = max(rows[0][1] for rows in rig.runner.batches)
    assert largest == 2048 or max(first) > 0.5 * RELAXED * TARGET


@pytest.mark.parametrize("kind", [TimedRunner, TimedDelayedRunner])
@pytest.mark.parametrize("machine", [SMALL, FAST], ids=["small", "fast"])
def test_a1_running_streams_pause_no_longer_than_the_target(machine: Machine, kind: type[SimulatedRunner]) -> None:
    """With the context growing to 8000 ids, of which each costs more than the one before."""
    rig = make(machine, kind)
    long = beside_streams(rig, 8000, streams=3, steps=5)
    times: list[float] = []
    while long not in rig.ended:
        times += durations(rig, 1)
    assert max(times) < 1.3 * TARGET
    assert sum(times) < 2 * 8000 * (machine.token + machine.pair * 4000) + 1
    rig.run()
    rig.assert_all_complete()


def test_b1_a_slow_machine_computes_one_block_beside_streams() -> None:
    rig = make(LARGER)
    beside_streams(rig, 400)
    rig.step()
    assert max(durations(rig, 20)) < LARGER.base + LARGER.row + 17 * LARGER.token
    rig.run()
    rig.assert_all_complete()


def test_a_machine_that_becomes_slower_is_noticed_in_a_few_steps() -> None:
    machine = Machine(0.008, 0.001, 0.001, 2e-7)
    rig = make(machine)
    beside_streams(rig, 8000)
    rig.steps(5)
    machine.slower = 4.0
    times = durations(rig, 12)
    assert max(times[6:]) < 1.5 * TARGET
    machine.slower = 1.0
    rig.steps(8)
    assert min(durations(rig, 5)) > 0.5 * TARGET


def test_one_step_that_was_held_up_counts_for_few() -> None:
    machine = Machine(0.008, 0.001, 0.001, 2e-7)
    rig = make(machine)
    beside_streams(rig, 8000)
    rig.steps(5)
    machine.slower = 100.0
    rig.step()
    machine.slower = 1.0
    rig.steps(6)
    assert min(durations(rig, 4)) > 0.5 * TARGET


def test_short_prompts_teach_nothing_of_long_ones() -> None:
    """Of a few ids it is the step itself that takes the time."""
    rig = make(SMALL)
    for i in range(20):
        rig.add(unlike(i, 3), 2)
        rig.run()
    beside_streams(rig, 2000)
    assert 0.6 * TARGET < durations(rig, 1)[0] < 1.3 * TARGET


def test_without_a_target_steps_take_what_they_may() -> None:
    rig = make(LARGER, step_target=0.0)
    beside_streams(rig, 3000)
    rig.step()
    assert rig.runner.batches[-1][1] == (0, 2047)


def test_nothing_is_limited_before_anything_was_measured() -> None:
    pace = Pace(TARGET)
    assert pace.allow(2048, 3, alone=False).fit(0, 5000) == 2048
    pace.note(0, [(0, 100)], 0.0)
    assert pace.allow(2048, 3, alone=False).fit(0, 5000) == 2048
    pace.note(0, [(0, 100)], 1.0)
    assert pace.allow(2048, 3, alone=False).fit(0, 5000) == 10


def test_a_target_beyond_all_numbers_is_none() -> None:
    pace = Pace(1e308)
    pace.note(0, [(0, 100)], 1.0)
    for alone in (False, True):
        assert pace.allow(2048, 3, alone=alone).fit(0, 5000) == 2048


def test_many_streams_leave_prompts_a_third_of_a_step() -> None:
    """A step takes longer then, but prompts that come all the time do not pile up."""
    busy = Machine(0.03, 0.02, 0.001, 0.0)
    rig = make(busy, max_batch=32)
    beside_streams(rig, 2000, streams=6, steps=40)
    rig.steps(3)
    assert durations(rig, 5) == pytest.approx([1.5 * (0.03 + 6 * 0.02)] * 5, rel=0.1)


def beside_three(machine: Machine) -> list[float]:
    """Seconds of the steps that compute a long prompt beside three streams, where no target was given."""
    rig = make(machine, step_target=None)
    for i in range(3):
        rig.add(unlike(i, 5), 900)
    rig.steps(40)
    long = rig.add(unlike(9, 8000), 1)
    times: list[float] = []
    while long not in rig.ended:
        times += durations(rig, 1)
    return times


QUICK = Machine(0.002, 0.0002, 0.0001, 0.0)
MIDDLE = Machine(0.011, 0.001, 0.0005, 0.0)


@pytest.mark.parametrize(
    ("machine", "seconds"),
    [(QUICK, SHORTEST), (MIDDLE, TIMES * 0.014), (Machine(0.04, 0.0, 0.0005, 0.0), LONGEST)],
    ids=["quick", "middle", "slow"],
)
def test_without_a_given_target_steps_follow_their_streams(machine: Machine, seconds: float) -> None:
    """A few times what they take alone, but no pause that nobody sees, and none that all do."""
    times = beside_three(machine)
    assert max(times) < 1.3 * seconds
    assert sum(times) / len(times) > 0.7 * seconds


def test_steps_that_others_delay_are_no_reason_for_larger_ones() -> None:
    """Where other processes take the processors at times, the target follows what steps take without them."""
    pace = Pace(None)
    for _ in range(50):
        pace.note(16, [], 0.01)
    for number in range(200):
        pace.note(16, [], 0.04 if number % 2 else 0.01)
    assert pace.target(16) < 1.6 * TIMES * 0.01


def test_streams_that_become_slower_have_a_larger_target() -> None:
    pace = Pace(None)
    for seconds in (0.01, 0.02):
        for _ in range(300):
            pace.note(16, [], seconds)
        assert pace.target(16) == pytest.approx(TIMES * seconds, rel=0.05)


def test_no_step_lasts_beside_the_first_prompt_that_comes() -> None:
    """The warm-up has told what a generation takes: no step without prompts needs to have come before."""
    rig = make(QUICK, step_target=None)
    rig.add(unlike(1, 5), 900)
    rig.step()
    rig.add(unlike(2, 8000), 1)
    assert max(durations(rig, 6)) < 1.3 * SHORTEST


def test_a_prompt_alone_is_computed_in_large_steps() -> None:
    """Nobody waits for them."""
    rig = make(QUICK, step_target=None)
    rig.add(unlike(1, 8000), 1)
    assert max(durations(rig, 3)) > SHORTEST * RELAXED
