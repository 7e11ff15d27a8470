"""The functions of `csrc/core_program.h`, as ctypes calls them."""

from __future__ import annotations

import ctypes

from headrace_engine.native.program_abi import (
    Attention,
    Batch,
    CpuOptions,
    Embed,
    Gated,
    Linear,
    Norm,
    Pack,
    RopeAppend,
    Sample,
    Select,
    Shape,
    Value,
    Weight,
)

_address, _i32, _i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_status = _i32
_of = ctypes.POINTER

PROTOTYPES: dict[str, tuple[type | None, ...]] = {
    "core_cpu_best_isa": (_i32,),
    "core_cpu_create": (_status, _of(CpuOptions), _of(_address)),
    "core_cpu_destroy": (None, _address),
    "core_cpu_isa": (_i32, _address),
    "core_cpu_progress": (_i64, _address),
    "core_cpu_allocate": (_address, _i64),
    "core_cpu_free": (None, _address),
    "core_cpu_touch": (_status, _address, _address, _i64, _i64),
    "core_cpu_allocations": (_i64,),
    "core_weight_version": (_i32,),
    "core_weight_bytes": (_i64, _of(Weight)),
    "core_weight_pack": (_status, _address, _of(Pack)),
    "core_weight_row": (_status, _of(Weight), _i64, _address),
    "core_program_create": (_status, _address, _of(Shape), _of(_address)),
    "core_program_destroy": (None, _address),
    "core_program_embed": (_status, _address, _of(Embed)),
    "core_program_norm": (_status, _address, _of(Norm)),
    "core_program_linear": (_status, _address, _of(Linear)),
    "core_program_rope_append": (_status, _address, _of(RopeAppend)),
    "core_program_attention": (_status, _address, _of(Attention)),
    "core_program_gated": (_status, _address, _of(Gated)),
    "core_program_select": (_status, _address, _of(Select)),
    "core_program_sample": (_status, _address, _of(Sample)),
    "core_program_workspace_bytes": (_i64, _address),
    "core_program_block_bytes": (_i64, _address),
    "core_program_bind": (_status, _address, _address, _i64),
    "core_program_kv": (_status, _address, _i32, _i32, _i32, _i32, _address),
    "core_program_value": (_address, _address, _of(Value)),
    "core_program_run": (_status, _address, _of(Batch)),
}
"""What each function returns, and what it takes."""


def declare(handle: ctypes.CDLL) -> None:
    """Tell ctypes the types of all functions of core_program.h."""
    for name, (returned, *taken) in PROTOTYPES.items():
        function = getattr(handle, name)
        function.restype = returned
        function.argtypes = taken
