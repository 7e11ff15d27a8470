"""The names of jax that programs for vSurge use, so that they run without it. They are nothing but names."""

from __future__ import annotations

from enum import Enum


class numpy:  # noqa: N801
    """Number formats."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Precision(Enum):
    """How exactly products are computed."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


class lax:  # noqa: N801
    """The names of jax.lax."""

    Precision = Precision
