"""Tensor parallelism: a rank's share of the matrices and heads, and its exchanges with the others."""
