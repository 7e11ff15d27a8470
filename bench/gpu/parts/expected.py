"""Limits of a card, and predictions made before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.config import WeightQuant
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native.abi import QuantizedLimit

from bench.gpu.costs import Cost
from bench.gpu.decode import Load, Measured, prompt_cost, step_cost
from bench.gpu.shapes import BFLOAT16, NUMBERS, Stored, weight_bytes, weight_values

Limits = tuple[float, float]
"""Bytes per second of a copy, and operations per second of a bfloat16 product."""

_STEP_SHARE, _PROMPT_SHARE = 0.8, 0.6
"""Predicted fractions of the limits: of steps of one token, and of prompts."""
_CODED_SHARE = 0.45
"""The same of products of many rows with codes: on an H100, mma.sync has two thirds of the operations that cuBLAS gets
from other instructions, and a third of that is lost to making numbers of codes and scaling sums."""
_KERNEL_S, _LAYER_KERNELS, _OTHER_KERNELS = 1.5e-6, 10, 7
"""Seconds of overhead of a kernel in a captured step; number of kernels per layer, and in the rest of a step."""
_JOINS, _SUMS = 3, 4
"""More kernels per layer where weights are codes: sums of splits; and sums of inputs for offsets of many rows."""
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
    of_step = Cost(*step_cost(spec, batch, load.prompt + load.new // 2, stored))
    of_prompts = Cost(*prompt_cost(spec, batch, load, stored))
    step, prompts = of_step.floor(*limits), of_prompts.floor(*limits)
    steps, rows = -(-batch // load.at_once), load.prompt * min(batch, load.at_once)
    launches = _launches(spec, eager, stored, batch)
    step_s = _seconds(of_step, batch, limits, stored, _STEP_SHARE)
    step_s = max(step_s, launches) if eager else step_s + launches
    prompts_s = _seconds(of_prompts, rows, limits, stored, _PROMPT_SHARE)
    prompts_s += steps * _launches(spec, eager, stored, rows)
    if stored.weights is not WeightQuant.NONE and rows > QuantizedLimit.QUANTIZED_MOST_ROWS:
        prompts_s += steps * _unpacking(spec, limits, stored)
    return {
        "step ms": Expected(1e3 * step, 1e3 * step_s),
        "prompts ms": Expected(1e3 * prompts, 1e3 * prompts_s),
        "ids/s": Expected(_rate(batch, load, prompts, step), _rate(batch, load, prompts_s, step_s)),
    }


def _seconds(cost: Cost, rows: int, limits: Limits, stored: Stored, share: float) -> float:
    """Return the predicted seconds of a step, without launches.

    Up to FEW_ROWS and above MOST_ROWS codes come to what numbers do: memory is the limit, or cuBLAS multiplies. In
    between they are read from memory once, and from the cache for each further tile of rows.
    """
    copy, products = limits
    few, most = QuantizedLimit.QUANTIZED_FEW_ROWS, QuantizedLimit.QUANTIZED_MOST_ROWS
    if stored.weights is WeightQuant.NONE or not few < rows <= most:
        return cost.floor(*limits) / share
    return cost.floor(copy * share, products * _CODED_SHARE)


def _unpacking(spec: DecoderSpec, limits: Limits, stored: Stored) -> float:
    """Return the predicted seconds in which all codes are read, and written as numbers."""
    moved = weight_bytes(spec, stored.weights) + BFLOAT16 * weight_values(spec)
    return moved / (limits[0] * _STEP_SHARE)


def _launches(spec: DecoderSpec, eager: bool, stored: Stored, rows: int) -> float:
    if eager:
        return _EAGER_S * _EAGER_LAYER_KERNELS * spec.num_layers
    of_layer = _LAYER_KERNELS
    if stored.weights is not WeightQuant.NONE:
        summed = stored.weights is WeightQuant.INT4 and rows > QuantizedLimit.QUANTIZED_FEW_ROWS
        of_layer += _JOINS + (_SUMS if summed else 0)
    return _KERNEL_S * (of_layer * spec.num_layers + _OTHER_KERNELS)


def _rate(batch: int, load: Load, prompts: float, step: float) -> float:
    return batch * load.new / (prompts + (load.new - 1) * step)
