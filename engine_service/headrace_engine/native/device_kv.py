"""The parameter structs of `csrc/core_device_kv.h`, in ctypes."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from headrace_engine.native.program_enums import Kv

_address, _i32, _i64, _f32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class KvBlocks(ctypes.Structure):
    """CoreKvBlocks."""

    _fields_ = (
        ("data", _address),
        ("stride", _i64),
        ("count", _i64),
        ("kv_heads", _i32),
        ("head_dim", _i32),
        ("block_size", _i32),
        ("kv", _i32),
    )


class AppendKv(ctypes.Structure):
    """CoreAppendKv."""

    _fields_ = (
        *((name, _address) for name in ("q", "k", "v", "q_norm", "k_norm", "cos", "sin", "positions", "slots")),
        ("q_out", _address),
        ("blocks", KvBlocks),
        ("q_stride", _i64),
        ("k_stride", _i64),
        ("v_stride", _i64),
        ("tokens", _i32),
        ("heads", _i32),
        ("rotary_dim", _i32),
        ("eps", _f32),
    )


class DecodeAttention(ctypes.Structure):
    """CoreDecodeAttention."""

    _fields_ = (
        *((name, _address) for name in ("q", "tables", "stored", "out", "parts", "part_sums")),
        ("blocks", KvBlocks),
        ("q_stride", _i64),
        ("sequences", _i32),
        ("heads", _i32),
        ("max_blocks", _i32),
        ("splits", _i32),
        ("split_size", _i32),
        ("window", _i32),
        ("scale", _f32),
        ("soft_cap", _f32),
    )


class PrefillAttention(ctypes.Structure):
    """CorePrefillAttention."""

    _fields_ = (
        *((name, _address) for name in ("q", "tables", "firsts", "stored", "out")),
        ("blocks", KvBlocks),
        ("q_stride", _i64),
        ("sequences", _i32),
        ("longest", _i32),
        ("heads", _i32),
        ("max_blocks", _i32),
        ("window", _i32),
        ("scale", _f32),
        ("soft_cap", _f32),
    )


class CopyBlocks(ctypes.Structure):
    """CoreCopyBlocks."""

    _fields_ = (
        ("source", _address),
        ("target", _address),
        ("pairs", _address),
        ("bytes", _i64),
        ("source_stride", _i64),
        ("target_stride", _i64),
        ("source_piece_stride", _i64),
        ("target_piece_stride", _i64),
        ("count", _i32),
        ("pieces", _i32),
    )


ENUMS: dict[str, tuple[type[IntEnum], ...]] = {"CORE_KV_": (Kv,)}
"""By the prefix of their constants."""

OPS: dict[str, type[ctypes.Structure]] = {
    "append_kv": AppendKv,
    "decode_attention": DecodeAttention,
    "prefill_attention": PrefillAttention,
    "copy_blocks": CopyBlocks,
}
"""Parameter structs by op."""

RECORDS: dict[str, type[ctypes.Structure]] = {
    "CoreKvBlocks": KvBlocks,
    "CoreAppendKv": AppendKv,
    "CoreDecodeAttention": DecodeAttention,
    "CorePrefillAttention": PrefillAttention,
    "CoreCopyBlocks": CopyBlocks,
}
"""By their names in C."""
