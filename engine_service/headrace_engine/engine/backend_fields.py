"""Which backend a model's config will meet, as far as that is known before its core is there."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.backend_choices import check_choices
from headrace_engine.config import ComputeUnit, RuntimeConfig

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
    check_choices(config, _AUTO.get(config.compute_unit, "") if backend == "auto" else backend)
