"""Beam search on the simulated device: candidates beside the oracle's, and blocks copied within the pool."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace_engine.backends import torch
from headrace_engine.config import ComputeDtype, KvCacheMode
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import BlockCopies, SequenceStep
from headrace_engine.ipc.commands import BeamPlan
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.sampling_params import LogitRules
from native.sim_runs import GREEDY, on_cpu, plan_for
from support.backends.runners import ready
from support.backends.same_tokens import ROUNDING
from support.core.rig import Rig
from support.sim import device as sim

pytestmark = pytest.mark.usefixtures("simulator")


class SimRig(Rig):
    """A core on the simulated device."""

    make_runner = staticmethod(sim.make_runner)

    def __init__(self, plan: CorePlan, **changes: object) -> None:
        fields = {name: getattr(plan, name) for name in ("path", "format", "compute_unit", "dtype", "block_size")}
        super().__init__(**{**fields, "max_length": 64, "num_blocks": 64, **changes})


def test_candidates_are_those_of_the_oracle(model_path: Path) -> None:
    """With changes, and masked ids left out; log-probabilities are compared where both name an id."""
    plan = plan_for(model_path)
    changes = LogitChanges(repetition=1.5, penalized=array("i", [3, 90]), penalties=array("d", [0.0, 1.0]))
    step = SequenceStep([3, 90, 41], 0, (0,), GREEDY, changes=changes, masked_ids=[5, 6], candidates=12)
    oracle = ready(torch.make_runner(replace(on_cpu(plan), dtype=ComputeDtype.FLOAT32)))
    (expected,), (got,) = oracle.run([step]), ready(sim.make_runner(plan)).run([step])
    assert expected.candidates is not None
    assert got.candidates is not None
    assert len(got.candidates) == len(expected.candidates) == 12
    known = {token: scores for token, *scores in expected.candidates}
    shared = [(scores, known[token]) for token, *scores in got.candidates if token in known]
    assert len(shared) >= 9
    for scores, others in shared:
        assert np.allclose(scores, others, atol=8 * ROUNDING["bfloat16"])
    assert not {5, 6} & {token for token, *_ in got.candidates}


@pytest.mark.parametrize("mode", KvCacheMode)
def test_blocks_are_copied_within_the_pool(model_path: Path, mode: KvCacheMode) -> None:
    runner = ready(sim.make_runner(plan_for(model_path, kv_cache_mode=mode)))
    runner.run([SequenceStep(list(range(3, 35)), 0, (0, 1), GREEDY)])
    expected = runner.run([SequenceStep([50], 32, (0, 1, 2), GREEDY)])
    runner.copy_blocks(BlockCopies(within=[(0, 5), (1, 6), (6, 4)]))
    runner.run([SequenceStep(list(range(40, 72)), 0, (0, 1), GREEDY)])
    assert runner.run([SequenceStep([50], 32, (5, 4, 2), GREEDY)]) == expected


@pytest.mark.parametrize("rules", [None, LogitRules(repetition_penalty=1.2)])
def test_a_search_branches_and_ends(model_path: Path, rules: LogitRules | None) -> None:
    rig = SimRig(plan_for(model_path))
    plan = BeamPlan(4)
    keys = rig.search([3, 90, 41], 20, plan, 4, rules=rules)
    rig.run()
    texts = [tuple(rig.tokens[key]) for key in keys]
    assert [len(text) for text in texts] == [20] * 4
    assert len(set(texts)) == 4
    rig.assert_idle()
    rig.runner.close()
