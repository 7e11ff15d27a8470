"""A CUDA device: its memory, captured steps, in-flight steps, and the KV pool on it."""
