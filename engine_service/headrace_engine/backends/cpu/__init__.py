"""The cpu backend: programs of core_cpu, on the threads of this host."""

from headrace_engine.backends.cpu.parallel.runner import CpuRank
from headrace_engine.backends.cpu.runner import CpuRunner, make_runner

make_rank = CpuRank
"""Makes the runner of a rank of a plan with tensor_parallel above 1; it opens nothing before `load`."""

__all__ = ["CpuRunner", "make_rank", "make_runner"]
