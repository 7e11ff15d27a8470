"""Makes the choices that a plan leaves to this backend, and refuses what it does not support."""

from __future__ import annotations

from headrace_engine.backend_choices import WEIGHT_GROUPS, check_choices, integers_needed
from headrace_engine.backends.cpu.weights.blocks import block_type
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.config import ActivationQuant, ComputeDtype, ComputeUnit, KvCacheMode, WeightQuant
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.files import ModelFiles
from headrace_engine.native import Activations, Kv

_OWN_DTYPES = {"F32": ComputeDtype.FLOAT32, "F64": ComputeDtype.FLOAT32, "F16": ComputeDtype.FLOAT16}


def check_plan(plan: CorePlan) -> None:
    """Refuse a plan that this backend does not support, whatever the model.

    Raises:
        InvalidArgument: names the field.
    """
    check_choices(plan, "cpu")
    if plan.compute_unit is not ComputeUnit.CPU_NUMA and plan.device_list not in ((), (0,)):
        text = f"= {list(plan.device_list)} is out of range; allowed for CPU: 0"
        raise InvalidArgument.field("config.device_list", text)
    if plan.weight_quant_group_size is not None and plan.weight_quant is WeightQuant.NONE:
        text = f"= {plan.weight_quant_group_size} is set, but weight_quant is NONE: set it to INT8 or INT4"
        raise InvalidArgument.field("config.weight_quant_group_size", text)


def choose_dtype(plan: CorePlan, files: ModelFiles) -> ComputeDtype:
    """Return the plan's number format. AUTO is the file's own; bfloat16 for block formats."""
    if plan.dtype is not ComputeDtype.AUTO:
        return plan.dtype
    return _OWN_DTYPES.get(files.number_type, ComputeDtype.BFLOAT16)


def choose_storage(plan: CorePlan, dtype: ComputeDtype) -> Storage:
    """Return the storage of the weights."""
    group = plan.weight_quant_group_size
    default = WEIGHT_GROUPS.get(plan.weight_quant, 0)
    return Storage(dtype, plan.weight_quant, default if group is None else group)


def choose_kv(plan: CorePlan, dtype: ComputeDtype) -> Kv:
    """Return the storage of keys and values. float32 holds float16 without loss; bfloat16 would not."""
    if plan.kv_cache_mode is not KvCacheMode.DEFAULT:
        return Kv[plan.kv_cache_mode]
    return Kv.BFLOAT16 if dtype is ComputeDtype.BFLOAT16 else Kv.FLOAT32


def choose_activations(plan: CorePlan, files: ModelFiles, storage: Storage) -> Activations:
    """Return the format of activations in products.

    Raises:
        InvalidArgument: eight bits are requested, but no weight is quantized.
    """
    if plan.activation_quant is ActivationQuant.NONE:
        return Activations.FULL
    if storage.quant is WeightQuant.NONE and not _has_blocks(files, storage):
        raise integers_needed()
    return Activations.INT8


def _has_blocks(files: ModelFiles, storage: Storage) -> bool:
    matrices = [info.stored for info in files.tensors.values() if len(info.shape) == 2]
    if storage.dtype is ComputeDtype.FLOAT32:
        matrices = [stored for stored in matrices if stored.has_own_codes]
    return any(block_type(stored) is not None for stored in matrices)
