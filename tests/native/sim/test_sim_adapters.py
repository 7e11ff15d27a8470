"""Adapters on the simulated device: rows of several, and of none, score as on the cpu backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.backends import cpu
from headrace_engine.models.catalogue import open_model
from native.sim_runs import SHAPE, Sequences, on_cpu, plan_for, prompts
from support.backends.runners import ready
from support.backends.same_tokens import TINY_MODEL, Distance, scores_agree
from support.models.tiny_adapters import adapter_plan, make_tiny_adapter
from support.models.tiny_models import make_tiny_llama
from support.sim import device as sim

pytestmark = pytest.mark.usefixtures("simulator")
ADAPTERS = (1, 2, 0, 1)
TOKENS = 8
LIMIT = Distance(median=0.1, most=TINY_MODEL.most)
"""Factors, and what they add, are rounded to bfloat16 on the device, and float32 on the cpu backend."""


def test_rows_of_several_adapters_score_as_on_the_cpu(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", vocab_size=256, **SHAPE)
    spec = open_model(str(model)).spec
    paths = [make_tiny_adapter(tmp_path / str(rank), model, r=rank, seed=rank) for rank in (4, 7)]
    plan = plan_for(model, lora_max_num=2, lora_max_rank=8)
    runners = ready(cpu.make_runner(on_cpu(plan))), ready(sim.make_runner(plan))
    for runner in runners:
        for number, path in enumerate(paths, 1):
            runner.read_adapter(adapter_plan(number, path, spec))()
    leading = Sequences(runners[0], prompts(4, 1), adapters=ADAPTERS)
    leading.generate(TOKENS)
    follow = [[sampled.token_id or 0 for sampled in drawn] for drawn in leading.drawn]
    following = Sequences(runners[1], prompts(4, 1), chunk=19, follow=follow, adapters=ADAPTERS)
    following.generate(TOKENS)
    expected, got = ([each.top for drawn in run.drawn for each in drawn] for run in (leading, following))
    scores_agree(expected, got, LIMIT)
    bare = Sequences(runners[1], prompts(4, 1), chunk=19, follow=follow)
    bare.generate(TOKENS)
    assert [each.top for each in bare.drawn[2]] == [each.top for each in following.drawn[2]]
    with pytest.raises(AssertionError, match=r"of the reference|off by"):
        scores_agree(expected, [each.top for drawn in bare.drawn for each in drawn], LIMIT)
