"""Which backend a model's config will meet, as far as that is known before its core is there."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.backend_choices import check_choices, integers_needed
from headrace_engine.config import ActivationQuant, ComputeUnit, RuntimeConfig, WeightQuant
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
"""Storage of weights that are no codes."""


def check_backend(config: RuntimeConfig, backend: str) -> None:
    """Refuse what the backend will not honour. Where the core chooses it by what it finds, the core refuses.

    Args:
        backend: its name, or "auto".

    Raises:
        InvalidArgument: NOT_SUPPORTED, naming every such field; or compute_unit, of which there is none here.
    """
    check_choices(config, _known(config, backend))
    if config.compute_unit is ComputeUnit.CUDA and backend in _ON_CUDA and not has_driver():
        text = "= CUDA, but this host has no NVIDIA driver (libcuda.so.1), and so no CUDA device; allowed: CPU"
        raise InvalidArgument.field("config.compute_unit", text)


def check_storage(config: RuntimeConfig, files: ModelFiles, backend: str) -> None:
    """Refuse what the backend cannot do with weights as the files have them.

    Raises:
        InvalidArgument: names the field.
    """
    if config.activation_quant is not ActivationQuant.INT8 or config.weight_quant not in (None, WeightQuant.NONE):
        return
    numbers = all(tensor.stored.storage in _NUMBERS for tensor in files.tensors.values())
    if numbers and _known(config, backend) == "cpu":
        raise integers_needed()


def _known(config: RuntimeConfig, backend: str) -> str:
    """The backend's name; "" where it is not known yet."""
    if backend != "auto":
        return backend
    return "cpu" if config.compute_unit is None and not has_driver() else _AUTO.get(config.compute_unit, "")
