"""Headrace: large language models over gRPC, with handles and result queues."""

__version__ = "0.1.0"
