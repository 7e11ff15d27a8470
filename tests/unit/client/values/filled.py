"""Configs filled in from keywords."""

from __future__ import annotations

from typing import Any

from headrace._values.fill import fill
from headrace_proto.v1 import generation_pb2, runtime_pb2


def config(**fields: Any) -> generation_pb2.GenerationConfig:
    """A generation config with these fields."""
    message = generation_pb2.GenerationConfig()
    fill(message, fields)
    return message


def runtime(**fields: Any) -> runtime_pb2.RuntimeConfig:
    """A runtime config with these fields."""
    message = runtime_pb2.RuntimeConfig()
    fill(message, fields)
    return message
