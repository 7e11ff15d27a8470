"""The torch backend: the oracle, on a CPU or a CUDA device."""

from headrace_engine.backends.torch.runner import TorchRunner, make_runner

__all__ = ["TorchRunner", "make_runner"]
