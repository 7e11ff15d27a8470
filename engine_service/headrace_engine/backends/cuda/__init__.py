"""The cuda backend: csrc's kernels and cuBLAS on a CUDA device, or the same path on a CPU through the simulator."""

from headrace_engine.backends.cuda.runner import CudaRunner, make_runner

__all__ = ["CudaRunner", "make_runner"]
