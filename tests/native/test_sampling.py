"""The sampler of programs against the torch sampler, which computes in float64, at every instruction set."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.sampler import sample
from headrace_engine.config import SamplingParams
from headrace_engine.core.runner import Sampled as Expected
from headrace_engine.core.runner import SequenceStep
from headrace_engine.native import Batch, Cpu, Kv, Memory, Program, Rows, Sampled, Sampling, Shape, Value
from headrace_engine.native import Sequence as SequenceRows


class Sampler:
    """A program that draws from logits which the test gives, for up to `rows` rows."""

    def __init__(self, cpu: Cpu, rows: int, vocab: int) -> None:
        room = -(-rows * vocab // 16) * 16
        numbers = {"max_positions": 16, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "block_size": 16}
        counts = {"max_tokens": rows, "max_sequences": rows, "max_logits": rows}
        self._own = Value(0, vocab, Rows.TOKENS)
        self._program = Program(cpu, Shape(workspace=2 * room, vocab=vocab, kv=Kv.FLOAT32, **numbers, **counts))
        logits = Value(room, vocab, Rows.LOGITS)
        self._program.select(self._own, logits)
        self._program.sample(logits)
        self._program.bind(Memory(cpu.native, self._program.block_bytes), 1)

    def draw(self, logits: np.ndarray, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """One token a row."""
        rows = len(steps)
        self._program.value(self._own, rows)[:] = logits
        ids, wanted, blocks = (np.arange(rows) * 0).astype(np.int32), np.arange(rows, dtype=np.int32), np.zeros(1, "i4")
        sequences = (SequenceRows * rows)()
        for sequence in sequences:
            sequence.blocks, sequence.length = blocks.ctypes.data, 1
        masked = [np.array(step.masked_ids, dtype=np.int32) for step in steps]
        sampling = (Sampling * rows)(*(self._sampling(*pair) for pair in zip(steps, masked, strict=True)))
        sampled = (Sampled * rows)()
        self._program.run(
            Batch(
                token_ids=ids.ctypes.data,
                sequences=ctypes.addressof(sequences),
                wanted=wanted.ctypes.data,
                sampling=ctypes.addressof(sampling),
                sampled=ctypes.addressof(sampled),
                num_tokens=rows,
                num_sequences=rows,
                num_logits=rows,
            )
        )
        return list(sampled)

    @staticmethod
    def _sampling(step: SequenceStep, masked: np.ndarray) -> Sampling:
        params = step.sampling
        assert params is not None
        return Sampling(
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            masked=masked.ctypes.data,
            masked_count=len(masked),
            top_k=params.top_k,
            position=step.position,
            index=step.index,
            logprob=params.logprobs,
        )


def step(params: SamplingParams, position: int = 0, index: int = 0, masked: tuple[int, ...] = ()) -> SequenceStep:
    return SequenceStep([0], 0, [0], params, position=position, index=index, masked_ids=masked)


def as_expected(found: Sampled) -> Expected:
    """What the torch sampler would say, without the log-probability."""
    if not found.finite:
        return Expected(None, error="logits are not finite")
    return Expected(None if found.token < 0 else found.token)


def without_logprob(expected: Expected) -> Expected:
    return Expected(expected.token_id, error=expected.error)


ALL_CUTS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.0, 0.3, 1.0, 2.0), (0, 1, 5, 40), (1.0, 0.9, 0.5), (0.0, 0.05)
    )
]


def random_steps(count: int, vocab: int) -> list[SequenceStep]:
    """Every combination of cuts in turn, with random seeds, counters and masks."""
    steps = []
    for params in itertools.islice(itertools.cycle(random.sample(ALL_CUTS, len(ALL_CUTS))), count):
        masked = tuple(random.sample(range(vocab), min(vocab - 1, random.choice((0, 0, 1, 3)))))
        seeded = SamplingParams(
            params.temperature, params.top_k, params.top_p, params.min_p, random.getrandbits(64), logprobs=True
        )
        steps.append(step(seeded, random.randrange(10_000), random.randrange(3), masked))
    return steps


@pytest.mark.parametrize(("vocab", "rows"), [(1, 96), (2, 96), (17, 96), (1000, 96), (49_152, 6), (151_936, 2)])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_draws_what_the_reference_draws(
    cpu: Cpu, rng: np.random.Generator, vocab: int, rows: int, spread: float
) -> None:
    logits = (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)
    steps = random_steps(rows, vocab)
    expected, found = sample(torch.from_numpy(logits), steps), Sampler(cpu, rows, vocab).draw(logits, steps)
    assert [as_expected(row) for row in found] == [without_logprob(row) for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        if theirs.logprob is not None:
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def test_of_equal_logits_the_cuts_keep_all_and_an_arg_max_takes_the_first(cpu: Cpu) -> None:
    logits = np.repeat(np.array([[2, 5, 5, 5, 1, 5]], dtype=np.float32), len(ALL_CUTS), 0)
    steps = [step(params, position) for position, params in enumerate(ALL_CUTS)]
    expected, found = sample(torch.from_numpy(logits), steps), Sampler(cpu, len(steps), 6).draw(logits, steps)
    assert [row.token for row in found] == [row.token_id for row in expected]
    assert all(row.token == 1 for row, one in zip(found, ALL_CUTS, strict=True) if one.temperature == 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_told_and_touches_no_other(cpu: Cpu, rng: np.random.Generator, bad: float) -> None:
    logits = rng.standard_normal((6, 100)).astype(np.float32)
    steps = [step(SamplingParams(seed=row)) for row in range(6)]
    undisturbed = [row.token for row in Sampler(cpu, 6, 100).draw(logits, steps)]
    for place in (0, 50, 99):
        broken = logits.copy()
        broken[2, place] = bad
        found = Sampler(cpu, 6, 100).draw(broken, steps)
        assert [row.finite for row in found] == [1, 1, 0, 1, 1, 1]
        assert [row.token for row in found] == [*undisturbed[:2], -1, *undisturbed[3:]]


def test_where_every_id_is_masked_none_is_drawn(cpu: Cpu) -> None:
    everything = tuple(range(20))
    steps = [step(SamplingParams(temperature=t), masked=everything) for t in (0.0, 1.0)]
    found = Sampler(cpu, 2, 20).draw(np.zeros((2, 20), np.float32), steps)
    assert [(row.token, row.finite) for row in found] == [(-1, 1), (-1, 1)]


def test_ids_beyond_the_vocabulary_mask_nothing(cpu: Cpu) -> None:
    steps = [step(SamplingParams(temperature=0), masked=(20, -1, 2**31 - 1))]
    assert Sampler(cpu, 1, 20).draw(np.arange(20, dtype=np.float32)[None], steps)[0].token == 19


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.8), SamplingParams(temperature=1.3, top_k=50, top_p=0.9)]
)
def test_at_most_one_draw_in_100_000_differs_from_the_reference(
    cpu: Cpu, rng: np.random.Generator, params: SamplingParams
) -> None:
    draws, rows, vocab = 4_000, 4_000, 300
    logits = np.repeat((rng.standard_normal((1, vocab)) * 2).astype(np.float32), rows, 0)
    sampler, differing = Sampler(cpu, rows, vocab), 0
    for first in range(0, draws, rows):
        seeded = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed=7)
        steps = [step(seeded, first + row) for row in range(rows)]
        expected = sample(torch.from_numpy(logits), steps)
        found = sampler.draw(logits, steps)
        differing += sum(ours.token != theirs.token_id for ours, theirs in zip(found, expected, strict=True))
    assert differing == 0  # where one in 100,000 may differ: the four instruction sets and two settings make 32,000


def test_draws_follow_the_distribution_even_with_nearly_all_mass_on_one_id(cpu: Cpu, rng: np.random.Generator) -> None:
    draws, rows, vocab, heavy = 100_000, 10_000, 200, 0.999
    weights = np.concatenate([[heavy], np.full(vocab - 1, (1 - heavy) / (vocab - 1))])
    logits = np.repeat(np.log(weights).astype(np.float32)[None], rows, 0)
    sampler, counts = Sampler(cpu, rows, vocab), np.zeros(vocab, dtype=np.int64)
    seed = int(rng.integers(2**63))
    for first in range(0, draws, rows):
        steps = [step(SamplingParams(seed=seed), first + row) for row in range(rows)]
        counts += np.bincount([row.token for row in sampler.draw(logits, steps)], minlength=vocab)
    others = draws - counts[0]
    expected = draws * (1 - heavy)
    assert abs(others - expected) < 6 * np.sqrt(expected)  # six standard deviations
    assert counts[1:].max() <= 10  # 0.5 expected each


def test_draws_of_the_whole_vocabulary_follow_the_distribution(cpu: Cpu, rng: np.random.Generator) -> None:
    draws, rows, vocab = 60_000, 10_000, 64
    logits = rng.standard_normal(vocab).astype(np.float32) * 1.5
    probabilities = np.exp(logits.astype(np.float64) / 1.2)
    probabilities /= probabilities.sum()
    sampler, counts = Sampler(cpu, rows, vocab), np.zeros(vocab)
    seed = int(rng.integers(2**63))
    for first in range(0, draws, rows):
        steps = [step(SamplingParams(temperature=1.2, seed=seed), first + row) for row in range(rows)]
        counts += np.bincount(
            [row.token for row in sampler.draw(np.repeat(logits[None], rows, 0), steps)], minlength=vocab
        )
    expected = draws * probabilities
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 7 * np.sqrt(2 * 63)  # mean 63, seven standard deviations
