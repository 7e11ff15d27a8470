"""A core that a test drives command by command, on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_engine.backends.cpu import make_runner as make_cpu
from headrace_engine.backends.torch import make_runner as make_torch
from headrace_engine.config import ComputeDtype, ComputeUnit, ModelFormat

from support.core.rig import Rig


class ModelRig(Rig):
    """Runs a model in float32 on the backend that the plan names, on one CPU thread."""

    make_runner = staticmethod(lambda plan: (make_cpu if plan.backend == "cpu" else make_torch)(plan))

    def __init__(self, path: Path, backend: str, **changes: Any) -> None:
        unit = {"compute_unit": ComputeUnit.CPU, "num_threads": 1, "dtype": ComputeDtype.FLOAT32}
        sizes = {"max_length": 128, "num_blocks": 256, "block_size": 16, "format": ModelFormat.AUTO}
        super().__init__(path=str(path), backend=backend, **{**unit, **sizes, **changes})

    def close(self) -> None:
        """Check that every block is back, and free the model."""
        self.assert_idle()
        self.runner.close()
