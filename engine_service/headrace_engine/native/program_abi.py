"""What `csrc/core_program.h` declares, in ctypes: packed weights, programs and batches of core_cpu."""

from __future__ import annotations

import ctypes

from headrace_engine.native import sampling_abi
from headrace_engine.native.abi import Abi, facts_of
from headrace_engine.native.program_enums import Activations, Format, Gate, Isa, Kv, Limit, Rows

_f32, _i32, _i64 = ctypes.c_float, ctypes.c_int32, ctypes.c_int64
_address = ctypes.c_void_p


class CpuOptions(ctypes.Structure):
    """CoreCpuOptions."""

    _fields_ = (("cpus", _address), ("nodes", _address), ("threads", _i32), ("isa", _i32))


class Weight(ctypes.Structure):
    """CoreWeight."""

    _fields_ = (
        ("data", _address),
        ("outputs", _i64),
        ("inputs", _i64),
        ("format", _i32),
        ("group", _i32),
        ("scales", _i32),
        ("offsets", _i32),
        ("zero", _i32),
        ("codebook", _i32),
        ("stride", _i64),
        ("shards", _i32),
        ("values", _f32 * 16),
    )


class Pack(ctypes.Structure):
    """CorePack."""

    _fields_ = (
        ("weight", ctypes.POINTER(Weight)),
        ("rows_data", _address),
        ("row_scales", _address),
        ("row_offsets", _address),
        ("first_row", _i64),
        ("rows", _i64),
    )


class Value(ctypes.Structure):
    """CoreValue."""

    _fields_ = (("offset", _i64), ("width", _i32), ("rows", _i32))


class Shape(ctypes.Structure):
    """CoreShape."""

    _fields_ = (
        ("workspace", _i64),
        ("max_tokens", _i32),
        ("max_sequences", _i32),
        ("max_logits", _i32),
        ("max_positions", _i32),
        ("layers", _i32),
        ("heads", _i32),
        ("kv_heads", _i32),
        ("head_dim", _i32),
        ("block_size", _i32),
        ("kv", _i32),
        ("vocab", _i32),
    )


class Embed(ctypes.Structure):
    """CoreEmbed."""

    _fields_ = (("table", ctypes.POINTER(Weight)), ("out", Value))


class Norm(ctypes.Structure):
    """CoreNorm."""

    _fields_ = (
        ("weight", _address),
        ("x", Value),
        ("residual", Value),
        ("residual_out", Value),
        ("out", Value),
        ("eps", _f32),
    )


class Projection(ctypes.Structure):
    """CoreProjection."""

    _fields_ = (("weight", ctypes.POINTER(Weight)), ("bias", _address), ("out", Value))


class Linear(ctypes.Structure):
    """CoreLinear."""

    _fields_ = (("x", Value), ("projections", Projection * 3), ("count", _i32), ("activations", _i32))


class RopeAppend(ctypes.Structure):
    """CoreRopeAppend."""

    _fields_ = (
        ("cos", _address),
        ("sin", _address),
        ("q", Value),
        ("k", Value),
        ("v", Value),
        ("q_out", Value),
        ("rotary_dim", _i32),
        ("layer", _i32),
    )


class Attention(ctypes.Structure):
    """CoreAttention."""

    _fields_ = (
        ("q", Value),
        ("out", Value),
        ("layer", _i32),
        ("window", _i32),
        ("scale", _f32),
        ("soft_cap", _f32),
    )


class Gated(ctypes.Structure):
    """CoreGated."""

    _fields_ = (("gate", Value), ("up", Value), ("out", Value), ("activation", _i32))


class Select(ctypes.Structure):
    """CoreSelect."""

    _fields_ = (("x", Value), ("out", Value))


class Sample(ctypes.Structure):
    """CoreSample."""

    _fields_ = (("logits", Value),)


class Sequence(ctypes.Structure):
    """CoreSequence."""

    _fields_ = (("blocks", _address), ("length", _i32), ("start", _i32))


class Batch(ctypes.Structure):
    """CoreBatch."""

    _fields_ = (
        ("token_ids", _address),
        ("sequences", _address),
        ("wanted", _address),
        ("sampling", _address),
        ("sampled", _address),
        ("top_ids", _address),
        ("top_logprobs", _address),
        ("num_tokens", _i32),
        ("num_sequences", _i32),
        ("num_logits", _i32),
    )


_ENUMS = {
    "CORE_ISA_": (Isa,),
    "CORE_FORMAT_": (Format,),
    "CORE_ROWS_": (Rows,),
    "CORE_KV_": (Kv,),
    "CORE_ACTIVATIONS_": (Activations,),
    "CORE_GATE_": (Gate,),
    "CORE_": (Limit,),
}

RECORDS: dict[str, type[ctypes.Structure]] = {
    f"Core{record.__name__}": record
    for record in (
        CpuOptions,
        Weight,
        Pack,
        Value,
        Shape,
        Embed,
        Norm,
        Projection,
        Linear,
        RopeAppend,
        Attention,
        Gated,
        Select,
        Sample,
        Sequence,
        Batch,
    )
} | sampling_abi.RECORDS


def program_abi_here() -> Abi:
    """The facts of core_program.h that this package relies on."""
    return facts_of(_ENUMS, RECORDS)
