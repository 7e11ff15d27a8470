"""Runs logits processors on rows of tensors: Python functions, and kernels if the rows are on a device."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.backends.processors import Process, run_process, wrong_logit
from headrace_engine.backends.torch.sampling.logits import CUT
from headrace_engine.core.row_fields import Processing

Kernel = Callable[[Tensor, Tensor, Tensor], None]
"""Enqueue a change of a row of logits, float32 [vocab], in place, given int32 ids and float32 arguments."""


class RowProcessors:
    """Runs processors on rows.

    Args:
        processes: Python functions by name.
        kernels: kernels for the rows' device by name.
    """

    def __init__(self, processes: Mapping[str, Process], kernels: Mapping[str, Kernel]) -> None:
        self._processes = processes
        self._kernels = kernels

    def __call__(self, row: Tensor, processing: Processing) -> str:
        """Change a row in place.

        Args:
            row: float32 [vocab]; ids that may not be sampled are at -inf, and stay there.

        Returns:
            The error of the first that fails; "" if all succeed.
        """
        forbidden = row == CUT
        for one in processing.processors:
            error = self._run(one.name, row, processing.ids, one.arguments)
            if error:
                return f"logits processor {one.name!r}: {error}"
        row[forbidden] = CUT
        return ""

    def _run(self, name: str, row: Tensor, ids: array[int], arguments: tuple[float, ...]) -> str:
        kernel = self._kernels.get(name)
        if kernel is not None:
            kernel(
                row, _tensor(np.array(ids, dtype=np.int32), row), _tensor(np.array(arguments, dtype=np.float32), row)
            )
            return _wrong(row)
        host = row.cpu().numpy()  # On a CPU, the row's own memory.
        error = run_process(self._processes[name], host, ids, arguments)
        if row.device.type != "cpu":
            row.copy_(torch.from_numpy(host))
        return error


def _tensor(values: NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)


def _wrong(row: Tensor) -> str:
    """Wait for a kernel, and return what is wrong with its results; "" if nothing is."""
    wrong = row.isnan() | row.isposinf()
    if not wrong.any():
        return ""
    token_id = int(wrong.int().argmax())
    return wrong_logit(token_id, float(row[token_id]))
