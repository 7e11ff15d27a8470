"""Chooses the torch backend's device and number format."""

from __future__ import annotations

import torch

from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.files import ModelFiles

TORCH_DTYPES = {
    ComputeDtype.FLOAT32: torch.float32,
    ComputeDtype.BFLOAT16: torch.bfloat16,
    ComputeDtype.FLOAT16: torch.float16,
}


def choose_device(plan: CorePlan, rank: int = 0) -> tuple[ComputeUnit, torch.device]:
    """Return the plan's device; by default the CUDA device with the number of the rank if present, else the CPU.

    Raises:
        InvalidArgument: the device does not exist, or more than one is requested.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    unit = plan.compute_unit or (ComputeUnit.CUDA if found else ComputeUnit.CPU)
    if unit is ComputeUnit.CUDA and not found:
        raise InvalidArgument.field("config.compute_unit", "= CUDA, but there is no CUDA device here; allowed: CPU")
    if len(plan.device_list) > 1:
        text = f"= {list(plan.device_list)}: the torch backend computes on one device"
        raise InvalidArgument.unsupported("config.device_list", text)
    index = plan.device_list[0] if plan.device_list else rank * (unit is ComputeUnit.CUDA)
    highest = max(found - 1, 0) if unit is ComputeUnit.CUDA else 0
    if not 0 <= index <= highest:
        text = f"= [{index}] is out of range; allowed for {unit}: 0 to {highest}"
        raise InvalidArgument.field("config.device_list", text)
    return unit, torch.device("cuda", index) if unit is ComputeUnit.CUDA else torch.device("cpu")


def choose_dtype(plan: CorePlan, files: ModelFiles, unit: ComputeUnit) -> ComputeDtype:
    """Return the plan's number format. AUTO is float32 on a CPU; on CUDA the file's own, bfloat16 for block formats."""
    if plan.dtype is not ComputeDtype.AUTO:
        return plan.dtype
    if unit is ComputeUnit.CPU:
        return ComputeDtype.FLOAT32
    own = {"F32": ComputeDtype.FLOAT32, "F16": ComputeDtype.FLOAT16}
    return own.get(files.number_type, ComputeDtype.BFLOAT16)
