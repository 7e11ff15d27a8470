"""Failures of steps: each costs its own sequence, and a core that can compute no more ends."""

from __future__ import annotations

import pytest
from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.steps.executor import StepFailed
from headrace_engine.ipc.step_output import Ended
from headrace_engine.result_types import FinishReason
from unit.core.conftest import MakeRig


def test_a_row_that_is_not_finite_ends_alone(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = [rig.add([i, i + 1, i + 2], 6) for i in (10, 20, 30)]
    rig.runner.spoils = lambda step: 20 in step.token_ids
    rig.run()
    assert rig.ended[keys[1]] == Ended(keys[1], FinishReason.ERROR, "logits are not finite")
    assert rig.is_complete(keys[0])
    assert rig.is_complete(keys[2])


def test_bc105_spoilt_keys_and_values_are_never_reused(make_rig: MakeRig) -> None:
    """Earlier chunks were in the cache before the fault showed; the whole sequence is taken out of it."""
    rig = make_rig(max_prefill_tokens=8)
    spoilt = [True]
    rig.runner.spoils = lambda step: spoilt[0] and step.start == 0
    first = rig.add(list(range(30)), 6)
    rig.run()
    assert rig.ended[first].reason is FinishReason.ERROR
    spoilt[0] = False
    later = [rig.add(list(range(30)), 6) for _ in range(3)]
    rig.run()
    assert all(rig.is_complete(key) for key in later)
    assert rig.cached[later[0]] == 0


@pytest.mark.parametrize("where", ["prefill", "chunk", "generation"])
def test_bc105_an_exception_costs_its_own_sequence_alone(make_rig: MakeRig, where: str) -> None:
    rig = make_rig(max_prefill_tokens=16)
    keys = [rig.add([100 * i + j for j in range(20)], 6) for i in range(1, 4)]
    start = {"prefill": 0, "chunk": 16, "generation": 22}[where]

    def raises(step: SequenceStep) -> bool:
        covers = step.start <= start < step.start + len(step.token_ids)
        return covers and (200 in step.token_ids or rig.runner._pool.get((step.blocks[0], 0)) == (0, 200))

    rig.runner.raises = raises
    rig.run()
    assert rig.ended[keys[1]].reason is FinishReason.ERROR
    assert "RuntimeError: simulated fault" in rig.ended[keys[1]].error
    assert rig.is_complete(keys[0])
    assert rig.is_complete(keys[2])
    rig.runner.raises = lambda step: False
    again = [rig.add([100 * i + j for j in range(20)], 6) for i in range(1, 4)]
    rig.run()
    assert all(rig.is_complete(key) for key in again)


def test_an_exception_that_does_not_come_back_costs_nobody(make_rig: MakeRig) -> None:
    rig = make_rig()
    faults = iter([True])
    rig.runner.raises = lambda step: next(faults, False)
    for i in range(3):
        rig.add([i, i], 6)
    rig.run()
    rig.assert_all_complete()


def test_a_lonely_sequence_that_raises_ends_and_the_core_goes_on(make_rig: MakeRig) -> None:
    """A step of a harmless token still works, so the device is not to blame."""
    rig = make_rig()
    rig.runner.raises = lambda step: 13 in step.token_ids
    wrong = rig.add([13], 6)
    rig.run()
    right = rig.add([14], 6)
    rig.run()
    assert rig.ended[wrong].reason is FinishReason.ERROR
    assert rig.is_complete(right)


def test_the_core_fails_where_nothing_can_be_computed_any_more(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add([1, 2], 6)
    rig.add([3, 4], 6)
    rig.steps(2)
    rig.runner.raises = lambda step: True
    with pytest.raises(StepFailed, match="RuntimeError: simulated fault"):
        rig.core.step()


def test_a_key_that_is_in_use_is_a_defect(make_rig: MakeRig) -> None:
    rig = make_rig()
    key = rig.add([1], 30)
    rig.link.commands.append(rig.requests[key])
    with pytest.raises(ValueError, match=f"key {key} is in use"):
        rig.core.step()
