"""The native core in Python: the C ABI of `csrc/core.h` through ctypes.

Ops take addresses; `pointer()` takes the address of a tensor and checks the tensor.
"""

from headrace_engine.native.abi import Code, Dtype
from headrace_engine.native.library import FOLDER_VARIABLE, Library, Native, NativeError, NativeUnavailable, load
from headrace_engine.native.tensors import TensorLike, dtype_of, pointer

__all__ = [
    "FOLDER_VARIABLE",
    "Code",
    "Dtype",
    "Library",
    "Native",
    "NativeError",
    "NativeUnavailable",
    "TensorLike",
    "dtype_of",
    "load",
    "pointer",
]
