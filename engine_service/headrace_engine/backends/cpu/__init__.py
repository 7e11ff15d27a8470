"""The cpu backend: the native core's programs, on the threads of this host."""

from headrace_engine.backends.cpu.runner import CpuRunner, make_runner

__all__ = ["CpuRunner", "make_runner"]
