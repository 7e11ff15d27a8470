"""The native core in Python: the C ABI of `csrc/core.h` and `csrc/core_program.h` through ctypes.

Ops of core.h take addresses; `pointer()` takes the address of a tensor and checks the tensor. What core_cpu alone
has, threads, packed matrices and programs, are classes: `Cpu`, `Memory`, `PackedMatrix`, `Program`.
"""

from headrace_engine.native.abi import Code, Dtype
from headrace_engine.native.cpu import Cpu, Memory, allocations, choose_isa
from headrace_engine.native.library import Library, Native, NativeError, NativeUnavailable, load
from headrace_engine.native.matrix import ALIGNMENT, Matrix, MatrixRows, PackedMatrix, weight_version
from headrace_engine.native.program import NO_VALUE, Product, Program
from headrace_engine.native.program_abi import Batch, Sequence, Shape, Value
from headrace_engine.native.program_enums import Activations, Format, Gate, Isa, Kv, Limit, Rows
from headrace_engine.native.sampling_abi import LogitChanges, Sampled, Sampling
from headrace_engine.native.tensors import TensorLike, dtype_of, pointer

__all__ = [
    "ALIGNMENT",
    "NO_VALUE",
    "Activations",
    "Batch",
    "Code",
    "Cpu",
    "Dtype",
    "Format",
    "Gate",
    "Isa",
    "Kv",
    "Library",
    "Limit",
    "LogitChanges",
    "Matrix",
    "MatrixRows",
    "Memory",
    "Native",
    "NativeError",
    "NativeUnavailable",
    "PackedMatrix",
    "Product",
    "Program",
    "Rows",
    "Sampled",
    "Sampling",
    "Sequence",
    "Shape",
    "TensorLike",
    "Value",
    "allocations",
    "choose_isa",
    "dtype_of",
    "load",
    "pointer",
    "weight_version",
]
