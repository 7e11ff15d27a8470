"""What each backend honours less of than the table of the runtime config says."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.config import ActivationQuant, ComputeDtype, ComputeUnit, RuntimeConfig, WeightQuant
from headrace_engine.engine.field_checks import Field, check, table

_TORCH = table(
    Field("compute_unit", honoured=(ComputeUnit.CUDA, ComputeUnit.CPU)),
    Field("weight_quant", honoured=(WeightQuant.NONE,)),
    Field("weight_quant_group_size", honoured=()),
    Field("activation_quant", honoured=(ActivationQuant.NONE,)),
)
_CPU = table(
    Field("compute_unit", honoured=(ComputeUnit.CPU, ComputeUnit.CPU_NUMA)),
    Field("activation_quant", honoured=(ActivationQuant.NONE, ActivationQuant.INT8)),
    Field("block_size", honoured=(16, 32, 64, 128)),
)
_CUDA = table(
    Field("weight_quant_group_size", honoured=(0, 32, 64, 128)),
    Field("dtype", honoured=(ComputeDtype.AUTO, ComputeDtype.BFLOAT16)),
    Field("block_size", honoured=(16, 32, 64, 128)),
)
_TABLES: Mapping[str, Mapping[str, Field]] = {"torch": _TORCH, "cpu": _CPU, "cuda": _CUDA, "sim": _CUDA}
_AUTO: Mapping[ComputeUnit | None, str] = {
    ComputeUnit.CUDA: "torch",
    ComputeUnit.CPU: "cpu",
    ComputeUnit.CPU_NUMA: "cpu",
}


def check_backend(config: RuntimeConfig, backend: str) -> None:
    """Refuse what the backend will not honour. Where the core chooses it by what it finds, the core refuses.

    Args:
        backend: its name, or "auto".

    Raises:
        InvalidArgument: NOT_SUPPORTED, naming every such field.
    """
    name = _AUTO.get(config.compute_unit, "") if backend == "auto" else backend
    check(config, _TABLES.get(name, {}), "config.")
