"""Checks of a config against its backend, as far as that is known before the core starts."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.backend_choices import check_choices, integers_needed
from headrace_engine.config import ActivationQuant, ComputeUnit, RuntimeConfig, WeightQuant
from headrace_engine.cuda_checked import why_unchecked
from headrace_engine.cuda_driver import has_driver
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.files import ModelFiles

_AUTO: Mapping[ComputeUnit | None, str] = {
    ComputeUnit.CUDA: "torch",
    ComputeUnit.CPU: "cpu",
    ComputeUnit.CPU_NUMA: "cpu",
}
_ON_CUDA = ("auto", "cuda", "torch")
_NUMBERS = frozenset({"F64", "F32", "F16", "BF16"})
"""Storage types of weights that are not quantized."""


def check_backend(config: RuntimeConfig, backend: str) -> None:
    """Refuse fields that the backend does not support. Where the core chooses the backend, the core refuses them.

    Args:
        backend: name of the backend, or "auto".

    Raises:
        InvalidArgument: NOT_SUPPORTED, naming every such field; or this host has no such compute_unit.
    """
    check_choices(config, _known(config, backend))
    if config.compute_unit is ComputeUnit.CUDA and backend in _ON_CUDA and not has_driver():
        text = "= CUDA, but this host has no NVIDIA driver (libcuda.so.1), and so no CUDA device; allowed: CPU"
        raise InvalidArgument.field("config.compute_unit", text)


def may_be_cuda(config: RuntimeConfig, backend: str) -> bool:
    """Return True if the model may be computed on a CUDA device, which the core finds out."""
    on_cpu = config.compute_unit in (ComputeUnit.CPU, ComputeUnit.CPU_NUMA)
    return backend in _ON_CUDA and not on_cpu and has_driver()


def check_storage(config: RuntimeConfig, files: ModelFiles, backend: str) -> None:
    """Refuse quantization that the backend does not support for weights as stored in the files.

    Raises:
        InvalidArgument: naming the field.
    """
    if config.activation_quant is not ActivationQuant.INT8 or config.weight_quant not in (None, WeightQuant.NONE):
        return
    numbers = all(tensor.stored.storage in _NUMBERS for tensor in files.tensors.values())
    if numbers and _known(config, backend) == "cpu":
        raise integers_needed()


def _known(config: RuntimeConfig, backend: str) -> str:
    """Return the backend's name; "" if it is not known yet."""
    if backend != "auto":
        return backend
    if config.compute_unit is ComputeUnit.CUDA and not why_unchecked():
        return ""
    return "cpu" if config.compute_unit is None and not has_driver() else _AUTO.get(config.compute_unit, "")
