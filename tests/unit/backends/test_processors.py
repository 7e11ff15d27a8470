"""Logits processors in the backends: what they are given, what becomes of what they leave, and how they fail."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from headrace_engine.backends.changed_row import allowed_bits, changed_row
from headrace_engine.backends.cpu import make_runner as make_cpu
from headrace_engine.backends.torch import make_runner as make_torch
from headrace_engine.backends.torch.sampling.logits import changed_logits
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Runner, Sampled, SequenceStep
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.native import allocations, load
from headrace_engine.sampling_params import SamplingParams
from support.backends.logit_processors import CASES, VOCAB, random_history, ruled_step
from support.backends.runners import ready
from unit.backends.processes import (
    PROCESSES,
)
from unit.backends.processor_rows import GREEDY, PROMPT, one, plan, processing, row

SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.9, seed=7, logprobs=True),
    SamplingParams(temperature=1.4, seed=8, top_k=40, top_p=0.9, min_p=0.01, top_logprobs=2),
]


@pytest.fixture(scope="module", params=[make_cpu, make_torch], ids=["cpu", "torch"])
def runner(request, tiny_llama) -> Iterator[Runner]:
    runner = ready(request.param(plan(tiny_llama), PROCESSES))
    yield runner
    runner.close()


def boosted(token_id: int, by: float) -> LogitsProcessor:
    return LogitsProcessor("raise_one", (token_id, by))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_row_in_numpy_is_changed_to_the_bits_of_a_tensor(case):
    for seed in range(20):
        logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 8
        step = ruled_step(case, *random_history(seed), GREEDY, masked=(3, VOCAB + 5))
        expected = changed_logits(logits.unsqueeze(0), [step])[0]
        assert changed_row(logits.numpy(), step).tobytes() == expected.numpy().tobytes()


def test_a_row_in_numpy_stays_finite_and_passes_other_ids_over():
    huge = LogitChanges(
        repetition=1e-30,
        penalized=array("i", [0, VOCAB, 2]), penalties=array("d", [-3e38, 1, 0]),
        biased=array("i", [1, -4]), biases=array("d", [1e300, 1]),
        allowed=array("I", [0b111]),
    )  # fmt: skip
    logits = torch.tensor([3.0, -1.0, 1e30, 4.0] + [0.5] * (VOCAB - 4))
    step = SequenceStep([0], 0, (0,), GREEDY, changes=huge)
    changed = changed_row(logits.numpy(), step)
    assert changed.tobytes() == changed_logits(logits.unsqueeze(0), [step])[0].numpy().tobytes()
    assert np.isfinite(changed[:3]).all()
    assert np.isneginf(changed[3:]).all()


@pytest.mark.parametrize("size", [1, 31, 32, 33, 300])
def test_bits_of_a_row_are_as_changes_have_them(size):
    rng = np.random.default_rng(size)
    row = np.where(rng.random(size) < 0.5, -math.inf, 1.0).astype(np.float32)
    words = allowed_bits(row)
    assert [bool(words[i // 32] >> i % 32 & 1) for i in range(size)] == (row > -math.inf).tolist()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_what_leaves_the_logits_alone_changes_nothing(runner, sampling):
    rules = {
        "masked_ids": (5, 6),
        "changes": LogitChanges(
            1.3, array("i", PROMPT), array("d", [0.5] * len(PROMPT)), array("i", [9]), array("d", [2])
        ),
    }
    for fields in ({}, rules):
        plain = one(runner, row(sampling=sampling, position=3, index=1, **fields))
        again = one(runner, row(sampling=sampling, position=3, index=1, processing=processing("nothing"), **fields))
        assert again.token_id == plain.token_id
        assert again.logprob == pytest.approx(plain.logprob, abs=1e-6)
        assert [token for token, _ in again.top] == [token for token, _ in plain.top]
        assert [value for _, value in again.top] == pytest.approx([value for _, value in plain.top], abs=1e-6)


def test_rows_with_and_without_processors_share_a_batch(runner):
    plain = one(runner, row()).token_id
    steps = [
        row(0, None),
        row(1),
        row(2, processing=processing(boosted(17, 1e4))),
        row(3),
        row(4, processing=processing(boosted(18, 1e4))),
    ]
    assert [sampled.token_id for sampled in runner.run(steps)] == [plain, 17, plain, 18]


def test_it_is_given_all_ids_and_the_arguments(runner):
    for ids in (PROMPT, [*PROMPT, 100], [*PROMPT, 100, 5]):
        step = replace(row(processing=processing("by_all_ids", ids=ids)))
        assert one(runner, step).token_id == sum(ids) % 384


def test_several_are_called_in_their_order(runner):
    best = LogitsProcessor("put", (18, 2e4))
    first = processing(boosted(17, 1e4), "forbid_the_last", best, ids=[*PROMPT, 18])
    last = processing(boosted(17, 1e4), best, "forbid_the_last", ids=[*PROMPT, 18])
    cut = processing("lift_all", boosted(17, 1.0), "forbid_the_last", ids=[*PROMPT, 17])
    assert one(runner, row(processing=first)).token_id == 18
    assert one(runner, row(processing=last)).token_id == 17
    assert one(runner, row(processing=cut)).token_id == 0


def test_a_processor_sees_the_rules_result_and_lifts_no_ban(runner):
    best = one(runner, row()).token_id
    lift = processing("lift_all")
    assert one(runner, row(masked_ids=tuple(range(30)), processing=lift)).token_id == 30
    allowed = LogitChanges(allowed=array("I", [0, 0, 1 << 7]))
    assert one(runner, row(changes=allowed, processing=lift)).token_id == 71
    assert one(runner, row(changes=LogitChanges(allowed=array("I")), processing=lift)).token_id is None
    penalized = LogitChanges(penalized=array("i", [best]), penalties=array("d", [50.0]))
    assert one(runner, row(changes=penalized, processing=processing(boosted(best, 49.0)))).token_id != best
    assert one(runner, row(changes=penalized, processing=processing(boosted(best, 50.5)))).token_id == best


def test_log_probabilities_are_the_models_own(runner):
    plain = one(runner, row())
    forced = one(runner, row(processing=processing(boosted(17, 1e4))))
    assert forced.token_id == 17
    assert forced.logprob < plain.logprob
    assert [token for token, _ in forced.top] == [token for token, _ in plain.top]
    assert [value for _, value in forced.top] == pytest.approx([value for _, value in plain.top], abs=1e-6)


def test_where_nothing_is_left_no_token_is_sampled(runner):
    assert one(runner, row(processing=processing("forbid_all"))) == Sampled(None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail", "LookupError: no such word"),
        ("leave", "SystemExit: enough"),
        ("fail_in_no_words", "Wordless: its text cannot be formatted"),
        ("fail_in_half_a_pair", "ValueError: bad \\udcff name"),
        ("leave_nan", "left nan as the logit of id 11"),
        ("leave_infinity", "left inf as the logit of id 12"),
        ("return_a_copy", "returned ndarray; it has to change the logits in place"),
    ],
)
def test_what_fails_costs_its_own_row_alone(runner, name, words):
    plain = one(runner, row()).token_id
    before, failed, after = runner.run([row(0), row(1, processing=processing(name)), row(2)])
    assert failed.token_id is None
    assert failed.error.startswith(f"logits processor {name!r}: ")
    assert words in failed.error
    assert failed.error.encode()
    assert [before.token_id, after.token_id] == [plain, plain]


def test_shapes_are_its_own_affair(runner):
    assert one(runner, row(processing=processing("flatten"))).token_id == one(runner, row()).token_id


def test_more_rows_than_are_drawn_at_once(tiny_llama, monkeypatch):
    monkeypatch.setattr("headrace_engine.backends.cpu.prompt_logprobs._ROWS", 3)
    runner = ready(make_cpu(plan(tiny_llama), PROCESSES))
    steps = [row(n, processing=processing(boosted(40 + n, 1e4))) for n in range(8)]
    assert [sampled.token_id for sampled in runner.run(steps)] == list(range(40, 48))
    runner.close()


def test_nothing_is_allocated_by_a_step(tiny_llama):
    runner = ready(make_cpu(plan(tiny_llama), PROCESSES))
    runner.run([row()])
    before = allocations(load("cpu"))
    runner.run([row(n, processing=processing(boosted(17, 1e4))) for n in range(8)])
    assert allocations(load("cpu")) == before
    runner.close()


def test_backends_draw_the_same_tokens(tiny_llama):
    """Of 40 rows with each sampling, in float32."""
    runners = [ready(make(plan(tiny_llama), PROCESSES)) for make in (make_cpu, make_torch)]
    for sampling in SAMPLINGS:
        drawn: list[list[int | None]] = [[], []]
        for position in range(40):
            chosen = processing(boosted(position, 3.0), "forbid_the_last", ids=[*PROMPT, position % 5])
            step = row(sampling=replace(sampling, logprobs=False, top_logprobs=0), position=position, processing=chosen)
            for tokens, runner in zip(drawn, runners, strict=True):
                tokens.append(one(runner, step).token_id)
        assert drawn[0] == drawn[1]
        assert sampling.temperature == 0 or len(set(drawn[0])) > 10


@pytest.fixture(params=[make_cpu, make_torch], ids=["cpu", "torch"])
def make(request) -> Callable[[CorePlan], Runner]:
    return request.param
