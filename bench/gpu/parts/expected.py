"""Limits of a card, and predictions made before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.models.spec import DecoderSpec

from bench.gpu.costs import Cost
from bench.gpu.decode import Load, Measured, prompt_cost, step_cost
from bench.gpu.shapes import NUMBERS, Stored

Limits = tuple[float, float]
"""Bytes per second of a copy, and operations per second of a bfloat16 product."""

_STEP_SHARE, _PROMPT_SHARE = 0.8, 0.6
"""Predicted fractions of the limits: of steps of one token, and of prompts."""
_KERNEL_S, _LAYER_KERNELS, _OTHER_KERNELS = 1.5e-6, 10, 7
"""Seconds of overhead of a kernel in a captured step; number of kernels per layer, and in the rest of a step."""
_EAGER_S, _EAGER_LAYER_KERNELS = 5e-6, 25
"""The same for a model in transformers, whose kernels Python launches one by one."""


@dataclass(frozen=True)
class Expected:
    """Expectation of one figure; None if unknown.

    Attributes:
        limit: the floor of a time, the ceiling of a rate.
        predicted: the predicted figure.
    """

    limit: float | None
    predicted: float | None


def figures(found: Measured) -> dict[str, float]:
    """Return the figures of a measurement, by name and unit."""
    return {"step ms": 1e3 * found.step_s, "prompts ms": 1e3 * found.prompt_s, "ids/s": found.tokens_s}


def decoding(
    spec: DecoderSpec, load: Load, batch: int, limits: Limits, stored: Stored = NUMBERS, *, eager: bool = False
) -> Mapping[str, Expected]:
    """Return the expectations of a load, by the names of `figures`."""
    step = Cost(*step_cost(spec, batch, load.prompt + load.new // 2, stored)).floor(*limits)
    prompts = Cost(*prompt_cost(spec, batch, load, stored)).floor(*limits)
    launches = _launches(spec, eager)
    step_s = step / _STEP_SHARE + launches
    prompts_s = prompts / _PROMPT_SHARE + -(-batch // load.at_once) * launches
    if eager:
        step_s = max(step / _STEP_SHARE, launches)
    return {
        "step ms": Expected(1e3 * step, 1e3 * step_s),
        "prompts ms": Expected(1e3 * prompts, 1e3 * prompts_s),
        "ids/s": Expected(_rate(batch, load, prompts, step), _rate(batch, load, prompts_s, step_s)),
    }


def _launches(spec: DecoderSpec, eager: bool) -> float:
    if eager:
        return _EAGER_S * _EAGER_LAYER_KERNELS * spec.num_layers
    return _KERNEL_S * (_LAYER_KERNELS * spec.num_layers + _OTHER_KERNELS)


def _rate(batch: int, load: Load, prompts: float, step: float) -> float:
    return batch * load.new / (prompts + (load.new - 1) * step)
