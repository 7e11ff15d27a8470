"""The native libraries in Python.

The build generates `abi`: structs, enums and functions of the headers in `csrc`. Classes wrap the objects of core_cpu:
`Cpu`, `Memory`, `PackedMatrix`, `Program`, `Exchange`. `Native.launch` calls device ops.
"""

from headrace_engine.native.abi import (
    Activations,
    Batch,
    Code,
    Dtype,
    Format,
    Gate,
    Isa,
    Kv,
    Limit,
    LogitChanges,
    LowRank,
    Rows,
    Sampled,
    Sampling,
    Sequence,
    Shape,
    Value,
)
from headrace_engine.native.cpu import Cpu, Memory, allocations, choose_isa, machine_isas
from headrace_engine.native.errors import NativeError, NativeUnavailable
from headrace_engine.native.exchange import Exchange, exchange_bytes
from headrace_engine.native.library import Library, Native, load
from headrace_engine.native.matrix import ALIGNMENT, Matrix, MatrixRows, PackedMatrix, weight_version
from headrace_engine.native.operands import ExpertWeights, Product, Routing
from headrace_engine.native.program import Program
from headrace_engine.native.program_ops import NO_VALUE

__all__ = [
    "ALIGNMENT",
    "NO_VALUE",
    "Activations",
    "Batch",
    "Code",
    "Cpu",
    "Dtype",
    "Exchange",
    "ExpertWeights",
    "Format",
    "Gate",
    "Isa",
    "Kv",
    "Library",
    "Limit",
    "LogitChanges",
    "LowRank",
    "Matrix",
    "MatrixRows",
    "Memory",
    "Native",
    "NativeError",
    "NativeUnavailable",
    "PackedMatrix",
    "Product",
    "Program",
    "Routing",
    "Rows",
    "Sampled",
    "Sampling",
    "Sequence",
    "Shape",
    "Value",
    "allocations",
    "choose_isa",
    "exchange_bytes",
    "load",
    "machine_isas",
    "weight_version",
]
