"""The torch backend: the oracle, on a CPU or a CUDA device."""

import os
from collections.abc import Mapping
from types import MappingProxyType

# Set before torch is imported, which reads it. Threads that spin while waiting take CPU cores from the service: when
# all are busy, a step takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from headrace_engine.backends.processors import Process
from headrace_engine.backends.torch.runner import TorchRunner, make_runner
from headrace_engine.core.ranks import RankRunner
from headrace_engine.ipc.plans import CorePlan

__all__ = ["TorchRunner", "make_rank", "make_runner"]


def make_rank(plan: CorePlan, rank: int, processes: Mapping[str, Process] = MappingProxyType({})) -> RankRunner:
    """Return the runner of a rank of a plan with tensor_parallel above 1; it opens nothing before `load`."""
    from headrace_engine.backends.torch.parallel.runner import TorchRank  # Others need no torch.distributed.

    return TorchRank(plan, rank, processes)
