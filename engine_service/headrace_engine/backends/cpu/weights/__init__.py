"""Weights in memory: packed from the files of a model, as numbers or quantized."""
