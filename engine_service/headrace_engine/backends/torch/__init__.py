"""The torch backend: the oracle, on a CPU or a CUDA device."""

import os

# Set before torch is imported, which reads it. Threads that spin while waiting take CPU cores from the service: when
# all are busy, a step takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from headrace_engine.backends.torch.runner import TorchRunner, make_runner

__all__ = ["TorchRunner", "make_runner"]
