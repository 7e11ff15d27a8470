"""The enums of `csrc/core_program.h`."""

from __future__ import annotations

from enum import IntEnum


class Isa(IntEnum):
    """Instruction sets that kernels are compiled for, each with the ones before it: CoreIsa."""

    NONE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX = 4


class Format(IntEnum):
    """Storage of a matrix: CoreFormat."""

    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3
    INT8 = 4
    INT4 = 5


class Rows(IntEnum):
    """Whose number of rows a value has: CoreRows."""

    TOKENS = 1
    LOGITS = 2


class Kv(IntEnum):
    """Storage of keys and values: CoreKv."""

    FLOAT32 = 1
    BFLOAT16 = 2
    INT8 = 3
    UINT4 = 4


class Activations(IntEnum):
    """How activations enter a product with integer weights: CoreActivations."""

    FULL = 1
    INT8 = 2


class Gate(IntEnum):
    """The activation of a gate: CoreGate."""

    SILU = 1
    GELU = 2
    GELU_TANH = 3


class Limit(IntEnum):
    """Sizes that the ABI fixes: CoreLimit."""

    TOP_LOGPROBS = 20
