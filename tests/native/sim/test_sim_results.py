"""The results of steps that are copied to the host: those of the rows that are sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.core.runner import SequenceStep
from headrace_engine.sampling_params import SamplingParams
from native.sim_runs import GREEDY, plan_for
from support.backends.runners import ready
from support.sim import device as sim

pytestmark = pytest.mark.usefixtures("simulator")

MARK = 0xAB
PLAIN = SamplingParams(temperature=0, logprobs=True)


def written_rows(runner: CudaRunner, steps: list[SequenceStep]) -> dict[str, int]:
    """Run a step; return the number of leading rows of each array of results that it wrote on the host."""
    assert runner._steps is not None
    slots = runner._steps._sampler._results.host  # type: ignore[union-attr]
    for arrays in slots:
        for array in arrays.values():
            array.fill(MARK)
    assert all(sampled.token_id is not None for sampled in runner.run(steps))
    found = {}
    for name in slots[0]:
        rows = np.concatenate([np.flatnonzero((arrays[name] != MARK).any(axis=1)) for arrays in slots])
        assert rows.tolist() == list(range(len(rows)))
        found[name] = len(rows)
    return found


@pytest.mark.parametrize("start", [0, 3], ids=["prompts", "captured"])
def test_only_rows_that_are_sampled_are_copied(model_path: Path, start: int) -> None:
    """And their lists of likely ids only where one of them asks for that."""
    runner = ready(sim.make_runner(plan_for(model_path)))
    assert isinstance(runner, CudaRunner)
    assert runner._steps is not None

    def step(number: int, sampling: SamplingParams | None) -> SequenceStep:
        return SequenceStep([5, 6, 7] if not start else [9], start, (number,), sampling, index=number)

    runner.run([SequenceStep([5, 6, 7], 0, (number,), None) for number in range(4)])
    plain = [step(0, PLAIN), step(1, PLAIN), step(2, PLAIN)]
    assert written_rows(runner, plain) == {"sampled": 3, "top_ids": 0, "top_logprobs": 0}
    listed = [step(0, PLAIN), step(1, GREEDY)]
    assert written_rows(runner, listed) == {"sampled": 2, "top_ids": 2, "top_logprobs": 2}
    assert written_rows(runner, [step(3, PLAIN)]) == {"sampled": 1, "top_ids": 0, "top_logprobs": 0}
