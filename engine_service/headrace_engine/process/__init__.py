"""Runs a core in a process or thread of its own. The only package that imports both the core and the backends."""

from headrace_engine.process.child import main
from headrace_engine.process.parent import EarlyLauncher, launch_process
from headrace_engine.process.run import AUTO_BACKEND, BACKENDS, RunnerFactory, make_runner, run_core
from headrace_engine.process.thread import launch_thread

__all__ = [
    "AUTO_BACKEND",
    "BACKENDS",
    "EarlyLauncher",
    "RunnerFactory",
    "launch_process",
    "launch_thread",
    "main",
    "make_runner",
    "run_core",
]
