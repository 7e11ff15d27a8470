"""The torch backend: the oracle, on a CPU or a CUDA device."""

import os

# Read when torch is loaded, so it comes first. Threads that spin while they wait take the cores of the service beside
# them: where all cores are busy, a step then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from headrace_engine.backends.torch.runner import TorchRunner, make_runner

__all__ = ["TorchRunner", "make_runner"]
