"""The torch backend on the same device, by which the cuda backend's times and ids are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.backends.torch.loading import LoadedModel
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.backends.torch.runner import run_steps
from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.core.in_flight import FinishedStep, InFlightStep
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.sampling_params import SamplingParams
from support.backends.same_tokens import Comparison, same_tokens
from torch import Tensor

from bench.gpu.decode import Load, Measured, Steps, timed
from bench.gpu.shapes import BLOCK_SIZE, model_of, random_weights

PROMPTS = (1, 5, 16, 17, 40, 64, 100, 3)
"""Ids of the prompts whose answers are compared."""
ROUNDING = 0.25
"""Distance of two best scores within which bfloat16 may swap them, in a decoder of 30 layers with random weights, whose
logits have a standard deviation of 1."""
_LISTED = SamplingParams(temperature=0, logprobs=True, top_logprobs=2)


class TorchSteps:
    """Steps of a decoder of the torch backend.

    Args:
        weights: by canonical name.
        longest: maximum tokens of a sequence.
        num_blocks: blocks of its pool.
    """

    def __init__(self, spec: DecoderSpec, weights: Mapping[str, Tensor], longest: int, num_blocks: int) -> None:
        device, dtype = weights["embed"].device, weights["embed"].dtype
        named = {torch.bfloat16: ComputeDtype.BFLOAT16, torch.float32: ComputeDtype.FLOAT32}[dtype]
        unit = ComputeUnit.CPU if device.type == "cpu" else ComputeUnit.CUDA
        positions = Positions(spec, longest, device)
        model = LoadedModel(unit, device, named, spec, weights, positions, num_threads=1)
        self._decoder = model.decoder(model.pool(num_blocks, BLOCK_SIZE))

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Steps."""
        return run_steps(self._decoder, steps)

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """See Steps."""
        return FinishedStep(self.run(steps))


def measure(spec: DecoderSpec, device: torch.device, load: Load, sampling: SamplingParams) -> list[Measured]:
    """Run a load as `decode.measure` does, by the torch backend in bfloat16."""
    blocks = max(load.batches) * load.blocks
    return timed(TorchSteps(spec, random_weights(spec, device), load.limit, blocks), spec, load, sampling)


def compare(spec: DecoderSpec, device: Device, prompts: Sequence[int], new: int) -> Comparison:
    """Assert that greedy ids are those of torch in float32 on the same weights, within rounding: `same_tokens`.

    Both go on with torch's ids, so that each is compared after the same text, as a run of its own.

    Args:
        prompts: ids of each.
        new: ids of each answer.

    Raises:
        AssertionError: an id differs where rounding does not decide, or too many where it does.
    """
    torch.manual_seed(1)
    weights = random_weights(spec, device.torch)
    texts = [torch.randint(spec.vocab_size, (length,)).tolist() for length in prompts]
    each = -(-(max(prompts) + new) // BLOCK_SIZE)
    exact = {name: weight.float() for name, weight in weights.items()}
    led = _walk(TorchSteps(spec, exact, each * BLOCK_SIZE, each * len(texts)), texts, each, new)
    ids = [[_id(sampled) for sampled in answer] for answer in led]
    model = model_of(spec, device, weights, Sizes(sum(prompts), len(texts), each, BLOCK_SIZE))
    steps = StepRunner(model, model.pool(each * len(texts)))
    steps.capture()
    followed = _walk(steps, texts, each, new, ids)
    return same_tokens(
        [[_id(sampled)] for answer in led for sampled in answer],
        [[_id(sampled)] for answer in followed for sampled in answer],
        [[[score for _, score in sampled.top]] for answer in led for sampled in answer],
        rounding=ROUNDING,
    )


def _walk(
    steps: Steps, texts: Sequence[list[int]], blocks: int, new: int, follow: Sequence[Sequence[int]] | None = None
) -> list[list[Sampled]]:
    """Return what is sampled after each text, which goes on with the ids to follow, or with those sampled."""
    tables = [range(number * blocks, (number + 1) * blocks) for number in range(len(texts))]
    first = [SequenceStep(text, 0, table, _LISTED) for text, table in zip(texts, tables, strict=True)]
    drawn = [[sampled] for sampled in steps.run(first)]
    for position in range(1, new):
        step = []
        for number, (text, table) in enumerate(zip(texts, tables, strict=True)):
            token = follow[number][position - 1] if follow else _id(drawn[number][-1])
            step.append(SequenceStep([token], len(text) + position - 1, table, _LISTED, position=position))
        for answer, sampled in zip(drawn, steps.run(step), strict=True):
            answer.append(sampled)
    return drawn


def _id(sampled: Sampled) -> int:
    assert sampled.token_id is not None, sampled.error or "a step drew no id"
    return sampled.token_id
