"""Steps of the cuda backend that are launched one ahead, on the simulated device: ids that the host never saw."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.config import ComputeDtype
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.environment import OVERLAP_VARIABLE
from headrace_engine.errors import Internal, InvalidArgument
from headrace_engine.sampling_params import LogitRules, SamplingParams
from native.sim_runs import BLOCKS, GREEDY, plan_for, prompts
from support.backends.runners import ready
from support.backends.same_tokens import ROUNDING, same_tokens
from support.sim import device as sim
from unit.core.steps.test_random_configs import Drawn, RealRig

UNKNOWN = [0]
PROMPTS = prompts(4, 7)
NO_IDS = LogitChanges(allowed=array("I"))


pytestmark = pytest.mark.usefixtures("simulator")


@pytest.fixture(scope="module")
def runner(simulator: None, model_path: Path) -> CudaRunner:
    made = ready(sim.make_runner(plan_for(model_path)))
    assert isinstance(made, CudaRunner)
    return made


def prompt_step(number: int, **asked: Any) -> SequenceStep:
    """All of a prompt."""
    blocks = range(number * BLOCKS, (number + 1) * BLOCKS)
    return SequenceStep(PROMPTS[number], 0, blocks, index=number, **{"sampling": GREEDY, **asked})


def next_step(number: int, position: int, token: int | None = None, at: int | None = None) -> SequenceStep:
    """The token at a position behind a prompt: a known one, or what row `at` of the step before draws."""
    step = prompt_step(number)
    ids = UNKNOWN if token is None else [token]
    return replace(step, token_ids=ids, start=len(PROMPTS[number]) + position - 1, position=position, sampled_at=at)


def ids_of(drawn: Sequence[Sampled]) -> list[int]:
    return [one.token_id if one.token_id is not None else -1 for one in drawn]


def known(runner: CudaRunner, rows: Sequence[int], steps: int) -> list[list[Sampled]]:
    """Prompts and so many tokens, each step with ids that are known."""
    found = [runner.run([prompt_step(number) for number in rows])]
    for position in range(1, steps):
        ids = ids_of(found[-1])
        found.append(runner.run([next_step(number, position, ids[row]) for row, number in enumerate(rows)]))
    return found


def test_ids_pass_from_step_to_step_on_the_device(runner: CudaRunner) -> None:
    """From steps of prompts, whose end is not captured, and from captured ones, in any order of rows."""
    expected = known(runner, [0, 1, 2, 3], 4)
    launched_steps = [runner.launch([prompt_step(number) for number in range(4)])]
    launched_steps.append(runner.launch([next_step(number, 1, at=number) for number in (3, 1, 0, 2)]))
    found = [launched_steps[0].wait()]
    launched_steps.append(runner.launch([next_step(number, 2, at=(3, 1, 0, 2).index(number)) for number in range(4)]))
    found.append(launched_steps[1].wait())
    launched_steps.append(runner.launch([next_step(number, 3, at=number) for number in range(4)]))
    found += [launched_steps[2].wait(), launched_steps[3].wait()]
    assert [found[0], [found[1][place] for place in (2, 1, 3, 0)], *found[2:]] == expected
    assert not any(launched.finished for launched in launched_steps)


def test_rows_are_counted_with_those_that_draw_nothing(runner: CudaRunner) -> None:
    """In the step before, a chunk within a prompt stands first; in this one, another prompt joins."""
    first, second = known(runner, [1], 2)
    chunk = replace(prompt_step(3), token_ids=PROMPTS[3][:2], sampling=None)
    before = runner.launch([chunk, prompt_step(1)])
    after = runner.launch([next_step(1, 1, at=1), prompt_step(2)])
    assert ids_of(before.wait()) == ids_of(first)
    assert ids_of(after.wait())[0] == ids_of(second)[0]


def test_what_is_under_way_is_not_overwritten(runner: CudaRunner) -> None:
    """Neither what the host told, nor what it is told, by the step that is launched behind it."""
    steps = runner._steps
    assert steps is not None
    expected = known(runner, [0, 1], 3)
    masked = LogitChanges(biased=array("i", [5]), biases=array("d", [-3.0]))
    before = runner.launch([next_step(n, 1, ids_of(expected[0])[n]) for n in (0, 1)])
    slot = steps._slot
    sampler: Any = steps._sampler
    pinned = [steps._staging._words._sources, sampler._staging._sources, sampler._results._sources]
    pinned.append(sampler._arrays._pinned)
    kept = [memory[slot].clone() for memory in pinned]
    after = runner.launch([replace(next_step(n, 2, at=n), changes=masked, masked_ids=[9]) for n in (0, 1)])
    assert steps._slot != slot
    assert all(bool((memory[slot] == copy).all()) for memory, copy in zip(pinned, kept, strict=True))
    assert before.wait() == expected[1]
    assert len(after.wait()) == 2


def test_more_than_one_ahead_is_refused(runner: CudaRunner) -> None:
    launched_steps = [runner.launch([prompt_step(number)]) for number in (0, 1)]
    with pytest.raises(Internal, match="2 steps are in flight"):
        runner.launch([prompt_step(2)])
    assert [len(launched.wait()) for launched in launched_steps] == [1, 1]
    assert len(runner.run([prompt_step(2)])) == 1


def test_behind_a_row_that_drew_nothing_any_id_is_computed(runner: CudaRunner) -> None:
    """Nobody knows yet that its sequence has ended; the others get what they get without it."""
    first, second = known(runner, [0, 1], 2)
    before = runner.launch([prompt_step(0), replace(prompt_step(1), changes=NO_IDS)])
    after = runner.launch([next_step(0, 1, at=0), next_step(1, 1, at=1)])
    assert ids_of(before.wait()) == [ids_of(first)[0], -1]
    assert ids_of(after.wait())[0] == ids_of(second)[0]


def test_many_logit_changes_are_replaced_during_a_step(runner: CudaRunner) -> None:
    """Memory that grows for the second step is not that of the first."""
    forced = LogitChanges(biased=array("i", [77]), biases=array("d", [1e4]))
    many = array("i", [1000 + place for place in range(60_000)] + [78])
    crowd = LogitChanges(biased=many, biases=array("d", [0.0] * 60_000 + [1e4]))
    launched_steps = [runner.launch([replace(prompt_step(0), changes=change)]) for change in (forced, crowd)]
    assert [ids_of(launched.wait()) for launched in launched_steps] == [[77], [78]]


def test_what_the_host_has_a_part_in_lands_at_once(runner: CudaRunner) -> None:
    first, second = known(runner, [0], 2)
    before = runner.launch([prompt_step(0)])
    after = runner.launch([next_step(0, 1, at=0), replace(prompt_step(1), tensors=True)])
    assert after.finished
    assert ids_of(before.wait()) == ids_of(first)
    assert ids_of(after.wait())[0] == ids_of(second)[0]


def test_the_environment_can_ask_for_one_step_after_the_other(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAP_VARIABLE, "0")
    assert ready(sim.make_runner(plan_for(model_path))).launch([prompt_step(0)]).finished
    monkeypatch.setenv(OVERLAP_VARIABLE, "off")
    with pytest.raises(InvalidArgument, match='HEADRACE_OVERLAP = "off" in the environment; allowed: 0, 1'):
        ready(sim.make_runner(plan_for(model_path)))


class SimRig(RealRig):
    """A core on the simulated device."""

    make_runner = staticmethod(sim.make_runner)


Load = Callable[[RealRig], list[int]]


def at_once(rig: RealRig) -> list[int]:
    """All from the first step to the last: no batch is another one with overlap."""
    sampling = [SamplingParams(temperature=0.9, seed=seed, logprobs=True, top_logprobs=2) for seed in range(4)]
    return [rig.add(prompt, 6, sampling=each) for prompt, each in zip(PROMPTS, sampling, strict=True)]


def coming_and_going(rig: RealRig) -> list[int]:
    """Some join while others are under way, end by an id, are ended, or need what they drew."""
    keys = [rig.add(PROMPTS[0], 9, sampling=GREEDY), rig.add(PROMPTS[1], 6, sampling=GREEDY)]
    rig.steps(3)
    asked = LogitRules(no_repeat_ngram_size=1)
    keys += [rig.add(PROMPTS[2], 5, sampling=GREEDY, rules=asked)]
    rig.steps(2)
    keys += [rig.add(PROMPTS[0], 8, sampling=GREEDY, stop_ids=tuple(range(0, 384, 3)))]
    ended = rig.add(PROMPTS[3], 30, sampling=GREEDY)
    rig.steps(4)
    rig.end(ended)
    return keys


@pytest.mark.parametrize("load", [at_once, coming_and_going])
def test_a_core_brings_the_tokens_that_it_brings_without_overlap(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    """Where batches differ, products of other sizes round differently: of two nearly equal ids, that chooses."""
    runs: list[list[Drawn]] = []
    for overlap in ("0", "1"):
        monkeypatch.setenv(OVERLAP_VARIABLE, overlap)
        sizes = {"block_size": 16, "num_blocks": 32, "max_batch": 5, "num_threads": 1}
        rig = SimRig(path=str(model_path), dtype=ComputeDtype.BFLOAT16, **sizes)
        keys = load(rig)
        rig.run()
        runs.append([rig.drawn(key) for key in keys])
        rig.assert_idle()
    plain, ahead = runs
    if load is at_once:
        assert ahead == plain
    scores = [np.array([[logprob for _, logprob in top] for top in drawn.tops]) for drawn in plain]
    same_tokens(
        [drawn.ids for drawn in plain], [drawn.ids for drawn in ahead], scores, rounding=2 * ROUNDING["bfloat16"]
    )
