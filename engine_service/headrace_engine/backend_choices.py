"""Values of the runtime config that a backend supports, where they are fewer than the config's table allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_engine.config import (
    ActivationQuant,
    ComputeDtype,
    ComputeUnit,
    Speculation,
    WeightQuant,
)
from headrace_engine.errors import FieldViolation, InvalidArgument

Choices = Mapping[str, tuple[Any, ...]]
"""Supported values by field; all values of other fields are supported."""

_KERNEL_BLOCKS = (16, 32, 64, 128)
_TORCH: Choices = {
    "compute_unit": (ComputeUnit.CUDA, ComputeUnit.CPU),
    "weight_quant": (WeightQuant.NONE,),
    "weight_quant_group_size": (),
    "activation_quant": (ActivationQuant.NONE,),
    "speculation": (Speculation.OFF, Speculation.GRAMMAR, Speculation.NGRAM),
}
_CPU: Choices = {
    "compute_unit": (ComputeUnit.CPU, ComputeUnit.CPU_NUMA),
    "weight_quant_group_size": (0, 16, 32, 64, 128),
    "activation_quant": (ActivationQuant.NONE, ActivationQuant.INT8),
    "block_size": _KERNEL_BLOCKS,
}
_CUDA: Choices = {
    "weight_quant_group_size": (0, 32, 64, 128),
    "dtype": (ComputeDtype.AUTO, ComputeDtype.BFLOAT16),
    "block_size": _KERNEL_BLOCKS,
    "speculation": (Speculation.OFF,),
    "tensor_parallel": (1,),
}
CHOICES: Mapping[str, Choices] = {"torch": _TORCH, "cpu": _CPU, "cuda": _CUDA}

WEIGHT_GROUPS = {WeightQuant.INT8: 0, WeightQuant.INT4: 128}
"""Weights that share a scale, where a config does not say; 0: one a row."""

STEP_LIMITS = (32, 2048)
CUDA_STEP_LIMITS = (256, 8192)
"""max_batch and max_prefill_tokens where a config does not say."""


def step_limits(batch: int | None, tokens: int | None, *, cuda: bool) -> tuple[int, int]:
    """Return max_batch and max_prefill_tokens; what is not given becomes the default of the kind of device.

    On CUDA, a default gives way to what is given.

    Raises:
        InvalidArgument: a step does not hold a token of every sequence.
    """
    default_batch, default_tokens = CUDA_STEP_LIMITS if cuda else STEP_LIMITS
    if cuda:
        default_batch, default_tokens = min(default_batch, tokens or default_batch), max(default_tokens, batch or 0)
    found = batch or default_batch, tokens or default_tokens
    if found[1] < found[0]:
        text = f"= {found[1]} is less than max_batch = {found[0]}: a step must hold a token of every sequence"
        raise InvalidArgument.field("config.max_prefill_tokens", text)
    return found


def check_choices(config: Any, backend: str) -> None:
    """Refuse values that a backend does not support.

    Args:
        config: a RuntimeConfig or a CorePlan; a field that is None is left to the backend.
        backend: its name; "" if it is not known, which refuses nothing.

    Raises:
        InvalidArgument: NOT_SUPPORTED, naming every such field.
    """
    given = {name: getattr(config, name) for name in CHOICES.get(backend, ())}
    wrong = [name for name, value in given.items() if value is not None and value not in CHOICES[backend][name]]
    if wrong:
        violations = [FieldViolation(f"config.{name}", _refusal(backend, name, given[name])) for name in wrong]
        raise InvalidArgument.fields(violations, reason="NOT_SUPPORTED")


def _refusal(backend: str, name: str, value: object) -> str:
    """Return such as "= FP8 is not supported by the cpu backend; allowed: NONE, INT8"."""
    allowed = ", ".join(str(one) for one in CHOICES[backend][name])
    return (
        f"= {value} is not supported by the {backend} backend; {f'allowed: {allowed}' if allowed else 'leave it unset'}"
    )


def integers_needed() -> InvalidArgument:
    """Return the refusal of 8-bit activations on the cpu backend for weights that are not quantized."""
    text = "= INT8 needs quantized weights, and this model's are not: set weight_quant to INT8 or INT4"
    return InvalidArgument.field("config.activation_quant", text)
