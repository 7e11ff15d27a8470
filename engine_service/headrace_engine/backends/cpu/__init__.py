"""The cpu backend: programs of core_cpu, on the threads of this host."""

from headrace_engine.backends.cpu.runner import CpuRunner, make_runner

__all__ = ["CpuRunner", "make_runner"]
