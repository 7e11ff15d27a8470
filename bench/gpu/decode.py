"""Times of a decoder on a device: prompts, then steps of one token per sequence, launched one ahead."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.core.in_flight import InFlightStep
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.sampling_params import SamplingParams

from bench.gpu.shapes import BLOCK_SIZE, KV_BYTES, NUMBERS, Stored, random_model, weight_bytes, weight_values

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=1)
KINDS = {"greedy": GREEDY, "sampled": SAMPLED}
"""How decoders sample, by name."""
_WARM = 20
"""Tokens of the run before the measured one."""


@dataclass(frozen=True)
class Load:
    """Requests that arrive at once.

    Attributes:
        batches: numbers of requests, a run each.
        prompt, new: ids of each prompt and of each answer.
        rows: maximum prompt ids in a step.
        limit: maximum tokens of a sequence that the model is loaded for.
    """

    batches: tuple[int, ...]
    prompt: int
    new: int
    rows: int
    limit: int

    @property
    def blocks(self) -> int:
        """Number of blocks of a sequence."""
        return -(-(self.prompt + self.new) // BLOCK_SIZE)

    @property
    def at_once(self) -> int:
        """Number of prompts in a step."""
        return max(1, self.rows // self.prompt)


WHOLE = Load((1, 8, 32, 128), prompt=128, new=128, rows=8192, limit=131_072)
SHORT = Load((1, 3), prompt=17, new=3, rows=34, limit=4096)


@dataclass(frozen=True)
class Measured:
    """Measurements of one batch.

    Attributes:
        prompt_s: seconds until all first ids were sampled.
        step_s: seconds of a step of one token per sequence, median.
        tokens_s: ids sampled per second, including the time of prompts.
    """

    batch: int
    prompt_s: float
    step_s: float
    tokens_s: float


class Steps(Protocol):
    """What computes the steps of a decoder."""

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Compute a step."""

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """Begin a step; see `Runner.launch`."""


def step_cost(spec: DecoderSpec, batch: int, context: int, stored: Stored = NUMBERS) -> tuple[float, float]:
    """Return the bytes and operations of a step of one token per sequence."""
    tokens = batch * context * spec.num_layers
    kept = 2.0 * tokens * spec.num_kv_heads * KV_BYTES[stored.kv](spec.head_dim)
    attended = 4.0 * tokens * spec.query_width
    return weight_bytes(spec, stored.weights) + kept, 2.0 * batch * weight_values(spec) + attended


def prompt_cost(spec: DecoderSpec, batch: int, load: Load, stored: Stored = NUMBERS) -> tuple[float, float]:
    """Return the bytes and operations of all prompts: weights once per step, the head for each prompt's last token."""
    head = spec.vocab_size * spec.hidden_size
    multiplied = batch * (load.prompt * (weight_values(spec) - head) + head)
    attended = 2.0 * batch * load.prompt * (load.prompt + 1) * spec.query_width * spec.num_layers
    steps = -(-batch // load.at_once)
    return steps * weight_bytes(spec, stored.weights), 2.0 * multiplied + attended


def measure(
    spec: DecoderSpec, device: Device, load: Load, stored: Stored = NUMBERS, sampling: SamplingParams = GREEDY
) -> list[Measured]:
    """Run the load at each batch: first with few tokens, as a warm-up, then all of it."""
    largest = max(load.batches)
    model = random_model(spec, device, Sizes(load.rows, largest, load.limit // BLOCK_SIZE, BLOCK_SIZE), stored)
    steps = StepRunner(model, model.pool(largest * load.blocks))
    steps.capture()
    return timed(steps, spec, load, sampling)


def timed(steps: Steps, spec: DecoderSpec, load: Load, sampling: SamplingParams) -> list[Measured]:
    """Run the load at each batch by what computes its steps, as `measure` does."""
    found = []
    for batch in load.batches:
        _run(steps, spec, replace(load, new=min(load.new, _WARM)), batch, sampling)
        found.append(_run(steps, spec, load, batch, sampling))
    return found


def _run(steps: Steps, spec: DecoderSpec, load: Load, batch: int, sampling: SamplingParams) -> Measured:
    rng = random.Random(batch)
    prompts = [[rng.randrange(spec.vocab_size) for _ in range(load.prompt)] for _ in range(batch)]
    tables = [range(number * load.blocks, (number + 1) * load.blocks) for number in range(batch)]
    began = time.perf_counter()
    drawn: list[int] = []
    for first in range(0, batch, load.at_once):
        some = range(first, min(first + load.at_once, batch))
        drawn += _ids(steps, [_step(tables[number], prompts[number], 0, 0, sampling) for number in some])
    prompted = time.perf_counter()
    times = _generate(steps, load, tables, drawn, sampling)
    whole = time.perf_counter() - began
    return Measured(batch, prompted - began, statistics.median(times), batch * load.new / whole)


def _generate(steps: Steps, load: Load, tables: list[range], drawn: list[int], sampling: SamplingParams) -> list[float]:
    """Return the seconds between steps' ids. Where steps overlap, each is launched before the last one's ids arrive."""
    times, at = [], time.perf_counter()
    known = [_step(blocks, [token], load.prompt, 1, sampling) for blocks, token in zip(tables, drawn, strict=True)]
    flight = steps.launch(known)
    for position in range(2, load.new + 1):
        before = flight
        if position < load.new:
            ids = _checked(before.wait()) if before.finished else [0] * len(tables)
            start = load.prompt + position - 1
            following = [
                _step(blocks, [token], start, position, sampling) for blocks, token in zip(tables, ids, strict=True)
            ]
            flight = steps.launch(following if before.finished else _after(following))
        _checked(before.wait())
        times.append(time.perf_counter() - at)
        at += times[-1]
    return times


def _step(blocks: range, token_ids: list[int], start: int, position: int, sampling: SamplingParams) -> SequenceStep:
    return SequenceStep(token_ids, start, blocks, sampling, position=position)


def _after(steps: Iterable[SequenceStep]) -> list[SequenceStep]:
    """Return steps whose ids are those that the step before samples."""
    return [replace(step, sampled_at=number) for number, step in enumerate(steps)]


def _ids(steps: Steps, batch: list[SequenceStep]) -> list[int]:
    return _checked(steps.run(batch))


def _checked(drawn: list[Sampled]) -> list[int]:
    ids = [sampled.token_id for sampled in drawn]
    if None in ids:
        raise SystemExit("a step drew no id: the device computed what is not finite")
    return [token for token in ids if token is not None]
