"""Random requests on the real backends, preempted and handed to other cores: each is what it is alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from headrace_engine.config import ComputeDtype, ComputeUnit, KvCacheMode, ModelFormat, Speculation
from headrace_engine.ipc.plans import DraftPlan
from headrace_engine.process.run import make_runner
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core.drafter import KnowingDrafter
from support.core.rig import Rig
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import VOCAB_SIZE

token_ids = st.integers(0, VOCAB_SIZE - 1)
id_lists = st.lists(token_ids, max_size=40).map(tuple)
penalties = st.sampled_from([0.0, 0.0, 0.5, -0.5, 1.9])


Logprobs = list[tuple[float, list[int]]]
"""Of each token of a prompt: its log-probability, and the most likely ids in its place."""


@dataclass
class Drawn:
    """What one sequence came to, token by token; log-probabilities where they were asked for."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    vectors: list[list[float]] = field(default_factory=list)
    prompt: Logprobs = field(default_factory=list)


class RealRig(Rig):
    """A core on a real backend."""

    make_runner = staticmethod(make_runner)

    def drawn(self, key: int) -> Drawn:
        """What a sequence got from this core."""
        drawn = Drawn(prompt=self.prompt_logprobs.get(key, []))
        for data in self.vectors.get(key, []):
            drawn.vectors.append(list(memoryview(data).cast("f")) if data else [])
        for output in self.outputs:
            for row, _ in ((row, other) for row, other in enumerate(output.keys) if other == key):
                drawn.ids.append(output.token_ids[row])
                drawn.logprobs += output.logprobs[row : row + 1]
                counts = output.top_counts or [0] * len(output.keys)
                span = slice(sum(counts[:row]), sum(counts[: row + 1]))
                drawn.tops.append(list(zip(output.top_ids[span], output.top_logprobs[span], strict=True)))
        return drawn


def sampling() -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([0, 1, 5, 40]),
        top_p=st.sampled_from([1.0, 0.9, 0.4]),
        min_p=st.sampled_from([0.0, 0.05]),
        seed=st.integers(0, 2**64 - 1),
        logprobs=st.just(True),
        top_logprobs=st.sampled_from([0, 1, 5, 20]),
    )


def rules() -> st.SearchStrategy[LogitRules]:
    return st.builds(
        LogitRules,
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.6]),
        presence_penalty=penalties,
        frequency_penalty=penalties,
        no_repeat_ngram_size=st.sampled_from([0, 1, 2, 3]),
        bad_words=st.lists(st.lists(token_ids, min_size=1, max_size=2).map(tuple), max_size=20).map(tuple),
        logit_bias=st.dictionaries(token_ids, st.floats(-5, 5), max_size=10),
        allowed_token_ids=st.one_of(st.just(()), st.lists(token_ids, min_size=30, max_size=200).map(tuple)),
    )


def requests() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "prompt": st.lists(token_ids, min_size=1, max_size=40),
            "max_new": st.integers(1, 24),
            "sampling": sampling(),
            "rules": st.one_of(st.none(), rules()),
            "eos_ids": id_lists,
            "min_new": st.integers(0, 8),
            "index": st.integers(0, 3),
            "priority": st.integers(0, 1),
            "prompt_logprobs": st.sampled_from([None, None, 0, 2, 20]),
            "tensors": st.booleans(),
        }
    )


@dataclass
class Backend:
    """Cores of one backend: two whose pools hold about three long sequences, and one that computes each alone.

    The two draft ids if there is a drafter, or a draft model: the model itself, or another one.
    """

    scarce: RealRig
    successor: RealRig
    alone: RealRig
    drafter: KnowingDrafter | None = None
    draft_model: str = ""

    @property
    def drafts(self) -> bool:
        """True if ids are drafted."""
        return self.drafter is not None or bool(self.draft_model)

    def inform(self, keys: Iterable[int | None], results: Iterable[Drawn]) -> None:
        """Tell the drafter what the sequences of one core generate."""
        if self.drafter is not None:
            self.drafter.answers = {key: drawn.ids for key, drawn in zip(keys, results, strict=True) if key is not None}


@pytest.fixture(
    scope="module",
    params=[
        "cpu",
        "cpu drafting",
        "cpu drafting UINT4",
        "cpu itself",
        "cpu itself INT8",
        "cpu another",
        "torch",
        "torch drafting",
    ],
)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    root = tmp_path_factory.mktemp("random")
    folders = {"itself": make_tiny_llama(root / "tiny", max_position_embeddings=64)}
    name, drafts, mode, *_ = *request.param.split(), "", ""
    plan = {"backend": name, "path": str(folders["itself"]), "block_size": 16, "num_threads": 1}
    plan |= {"kv_cache_mode": KvCacheMode(mode or "DEFAULT")}
    plan |= {"dtype": ComputeDtype.FLOAT32, "compute_unit": ComputeUnit.CPU}
    scarce = {**plan, "num_blocks": 10, "num_host_blocks": 12, "max_prefill_tokens": 24}
    drafter = KnowingDrafter(7, 0.2, VOCAB_SIZE) if drafts == "drafting" else None
    if drafter is not None:
        scarce |= {"speculation": Speculation.NGRAM, "drafter": drafter}
    elif drafts:
        folders["another"] = make_tiny_llama(root / "another", max_position_embeddings=64, seed=5, num_hidden_layers=1)
        draft = DraftPlan(str(folders[drafts]), ModelFormat.HF, 64)
        scarce |= {"speculation": Speculation.DRAFT, "draft": draft, "vocab_size": VOCAB_SIZE}
    rigs = [RealRig(**scarce), RealRig(**scarce), RealRig(**plan, enable_prefix_cache=False)]
    yield Backend(*rigs, drafter, "" if drafter else drafts)
    for rig in rigs:
        rig.assert_idle()
        rig.runner.close()


def run_alone(rig: RealRig, request: dict[str, Any]) -> Drawn:
    key = rig.add(**request)
    rig.outputs.clear()
    rig.run()
    return rig.drawn(key)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(wanted=st.lists(requests(), min_size=2, max_size=7), steps=st.integers(0, 40))
def test_each_request_is_what_it_is_alone(backend: Backend, wanted: list[dict[str, Any]], steps: int) -> None:
    """All at once for some steps, in a pool for fewer; then in another core, which is given the ids so far."""
    first, second = backend.scarce, backend.successor
    first.outputs.clear()
    second.outputs.clear()
    results = [run_alone(backend.alone, request) for request in wanted]
    keys = [first.add(**request) for request in wanted]
    backend.inform(keys, results)
    first.steps(steps)
    begun = [first.drawn(key) for key in keys]
    later = [None if key in first.ended
             else second.add(**request, generated=tuple(before.ids), prompt_reported=1 + len(before.prompt))
             for key, request, before in zip(keys, wanted, begun, strict=True)]  # fmt: skip
    for key in keys:
        first.end(key)
    first.run()
    backend.inform(later, results)
    second.run()
    for request, before, key, alone in zip(wanted, begun, later, results, strict=True):
        after = Drawn() if key is None else second.drawn(key)
        assert before.ids + after.ids == alone.ids
        assert before.logprobs + after.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
        assert_prompts_are_alike(before.prompt + after.prompt, alone.prompt, request)
        for mine, expected in zip(with_vectors(before, after), with_vectors(alone), strict=True):
            assert mine == pytest.approx(expected, abs=1e-3)
        for ours, theirs in zip(before.tops + after.tops, alone.tops, strict=True):
            assert [token_id for token_id, _ in ours] == [token_id for token_id, _ in theirs]
    for rig in (first, second):
        rig.core.check_integrity()


def with_vectors(*drawn: Drawn) -> list[list[float]]:
    """The vectors of each token that has any."""
    return [row for one in drawn for row in one.vectors if row]


def assert_prompts_are_alike(ours: Logprobs, alone: Logprobs, request: dict[str, Any]) -> None:
    """Told whole and once, where asked."""
    asked = request["prompt_logprobs"] is not None
    assert len(ours) == len(alone) == (len(request["prompt"]) - 1 if asked else 0)
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in alone], abs=1e-3)
    assert [ids for _, ids in ours] == [ids for _, ids in alone]


def test_pools_were_scarce(backend: Backend) -> None:
    """Else nothing above was preempted, or moved to host memory; and some drafts held, where there were any."""
    rig = backend.scarce
    wanted = [  # Short prompts all run before the first ends, however many ids a step drafts.
        {"prompt": [number + 1] * 8, "max_new": 50, "sampling": SamplingParams(seed=number)} for number in range(5)
    ]
    results = [run_alone(backend.alone, request) for request in wanted]
    backend.inform([rig.add(**request) for request in wanted], results)
    rig.run()
    assert rig.preempted
    assert rig.stat.pool.host_blocks_used > 0
    counters = rig.stat.counters
    assert (counters.drafted_tokens > 0) == backend.drafts
    if backend.draft_model:
        held = counters.accepted_tokens / counters.drafted_tokens
        assert held > 0.98 if backend.draft_model == "itself" else held < 0.3
    elif backend.drafts:
        assert counters.drafted_tokens > counters.accepted_tokens > 0
