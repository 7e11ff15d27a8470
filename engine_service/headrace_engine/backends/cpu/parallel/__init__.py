"""Tensor parallelism of the cpu backend: a rank's share of the matrices, and its exchanges with the others."""
