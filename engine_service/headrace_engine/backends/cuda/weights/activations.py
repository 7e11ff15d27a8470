"""Chooses the type of quantized activations, and checks that model and device support it."""

from __future__ import annotations

from headrace_engine.backends.cpu.weights.blocks import block_type
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.weights.row_products import MULTIPLE
from headrace_engine.config import ActivationQuant, WeightQuant
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.files import ModelFiles, TensorInfo
from headrace_engine.native.abi import RowCodes

FP8_CAPABILITY = (8, 9)
"""Minimum compute capability for products of e4m3."""


def takes_quantized_rows(info: TensorInfo, codes: RowCodes) -> bool:
    """Return True for projections of layers; with FP8, for a head of its own too, if its shape and storage allow that.

    Embeddings are looked up, and not multiplied. With INT8, vocabulary tables are codes of another kind.
    """
    if info.name == "head":
        return codes is RowCodes.FP8 and _suits(info) and block_type(info.stored) is None
    return _is_projection(info)


def _is_projection(info: TensorInfo) -> bool:
    return info.name.startswith("layers.") and len(info.shape) == 2 and not info.name.endswith(".k_spread")


def _suits(info: TensorInfo) -> bool:
    return not any(extent % MULTIPLE for extent in info.shape)


def choose_row_codes(plan: CorePlan, files: ModelFiles, device: Device) -> RowCodes | None:
    """Return the code type of activations in products of layers; None: numbers.

    Raises:
        InvalidArgument: weights or device do not support the plan; names activation_quant.
    """
    if plan.activation_quant is ActivationQuant.NONE:
        return None
    problem = _of_int8(plan) if plan.activation_quant is ActivationQuant.INT8 else _of_fp8(plan, files, device)
    problem = problem or _of_shapes(files)
    if problem:
        text = f"= {plan.activation_quant} {problem}"
        raise InvalidArgument.unsupported("config.activation_quant", text)
    return RowCodes[plan.activation_quant]


def _of_int8(plan: CorePlan) -> str:
    if plan.weight_quant is WeightQuant.INT8 and not plan.weight_quant_group_size:
        return ""
    group = "" if plan.weight_quant_group_size is None else f", weight_quant_group_size {plan.weight_quant_group_size}"
    return (
        f"is not supported by the cuda backend with weight_quant {plan.weight_quant}{group}: "
        "set weight_quant to INT8 and weight_quant_group_size to 0"
    )


def _of_fp8(plan: CorePlan, files: ModelFiles, device: Device) -> str:
    if device.capability < FP8_CAPABILITY:
        has, needs = (".".join(map(str, version)) for version in (device.capability, FP8_CAPABILITY))
        return f"needs a card of compute capability {needs}, {device.name} has {has}: use INT8"
    if plan.weight_quant is not WeightQuant.NONE:
        return f"quantizes the weights itself, but weight_quant is {plan.weight_quant}: set it to NONE"
    matrices = [info.stored for info in files.tensors.values() if _is_projection(info)]
    blocks = sorted({stored.storage for stored in matrices if block_type(stored) is not None})
    if blocks:
        found = ", ".join(blocks)
        return f"quantizes the weights itself, but this model's are quantized already ({found}): leave it out"
    return ""


def _of_shapes(files: ModelFiles) -> str:
    for info in files.tensors.values():
        if _is_projection(info) and not _suits(info):
            shape = " × ".join(map(str, info.shape))
            return f"takes matrices whose outputs and inputs are multiples of {MULTIPLE}; {info.name} is {shape}"
    return ""
