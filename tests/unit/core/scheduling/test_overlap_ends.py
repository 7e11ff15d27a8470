"""Steps one ahead, where sequences end or steps fail meanwhile."""

from __future__ import annotations

import pytest
from headrace_engine.core.steps.executor import StepFailed
from headrace_engine.ipc.commands import Shutdown
from headrace_engine.result_types import FinishReason
from hypothesis import strategies as st
from support.core.simulated import expected
from unit.core.scheduling.conftest import MakeDelayed

PROMPT = list(range(1, 11))


def test_what_is_computed_past_a_stop_is_thrown_away(make_delayed: MakeDelayed) -> None:
    """A sequence that ends by an id is in one more step, and its blocks are free for others after it."""
    rig = make_delayed()
    long = rig.add(PROMPT, 20)
    ids = expected(rig.requests[long])
    stopped = rig.add(PROMPT, 20, stop_ids=(ids[3],))
    other = rig.add(range(50, 60), 20)
    rig.run()
    rig.assert_all_complete()
    assert rig.ended[stopped].reason is FinishReason.STOP_WORD
    assert rig.tokens[stopped] == ids[:4]
    assert rig.ended[other].reason is FinishReason.MAX_LENGTH


def test_an_end_while_a_step_is_under_way_ends_it_at_once(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    key, other = rig.add(PROMPT, 20), rig.add(range(50, 60), 6)
    rig.steps(4)
    got = len(rig.tokens[key])
    rig.end(key)
    rig.run()
    assert len(rig.tokens[key]) == got, "a token after the end"
    assert rig.is_complete(other)


def test_a_core_that_is_shut_down_waits_for_what_it_launched(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    rig.add(PROMPT, 20)
    rig.steps(3)
    rig.link.commands.append(Shutdown())
    rig.core.serve()
    assert rig.runner._under_way() == 0
    rig.core._intake.stopped = False
    rig.core._under_way = None


@pytest.mark.parametrize("way", ["raises", "refuses"], ids=["while it is computed", "when it is launched"])
def test_a_step_that_fails_costs_the_sequence_that_fails_alone(make_delayed: MakeDelayed, way: str) -> None:
    """What was launched behind it is computed again, on ids that are there."""
    rig = make_delayed()
    bad, good, third = rig.add(PROMPT, 30), rig.add(range(50, 60), 30), rig.add(range(70, 75), 4)
    rig.steps(4)
    first = rig.core._scheduler.find(bad).blocks[0]  # type: ignore[union-attr]
    setattr(rig.runner, way, lambda step: step.start >= 14 and step.blocks[0] == first)
    rig.runner.raises = lambda step: step.start >= 14 and step.blocks[0] == first
    late = rig.add(range(80, 90), 9)
    rig.run()
    assert rig.ended[bad].reason is FinishReason.ERROR
    assert rig.ended[bad].error == "the step failed: RuntimeError: simulated fault"
    assert rig.tokens[bad] == expected(rig.requests[bad])[: len(rig.tokens[bad])]
    assert all(rig.is_complete(key) for key in (good, third, late))


def test_a_device_that_computes_nothing_any_more_ends_the_core(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    rig.add(PROMPT, 30)
    rig.steps(3)
    rig.runner.raises = lambda step: True
    with pytest.raises(StepFailed):
        rig.run()


def test_a_row_that_is_not_finite_ends_its_sequence_alone(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    bad, good = rig.add(PROMPT, 30), rig.add(range(50, 60), 30)
    rig.steps(3)
    first = rig.core._scheduler.find(bad).blocks[0]  # type: ignore[union-attr]
    rig.runner.spoils = lambda step: step.start == 13 and step.blocks[0] == first
    rig.run()
    assert rig.ended[bad].reason is FinishReason.ERROR
    assert rig.is_complete(good)
    again = rig.add(PROMPT, 6)
    rig.runner.spoils = lambda step: False
    rig.run()
    assert rig.is_complete(again)


ids = st.integers(0, 40)
