"""A CUDA card: tests and measurements that need no more than torch, cupy, numpy, transformers and pytest."""
