"""The cuda backend: csrc's kernels and cuBLAS on a CUDA device, or the same path on a CPU through the simulator."""
