"""Weights on a device: as numbers, and quantized."""
