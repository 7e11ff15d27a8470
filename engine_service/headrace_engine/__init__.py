"""The Headrace engine service: continuous batching of large language models behind gRPC."""

__version__ = "0.1.0"
