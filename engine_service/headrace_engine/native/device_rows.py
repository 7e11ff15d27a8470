"""What `csrc/core_device_rows.h` declares, in ctypes."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from headrace_engine.native import sampling_abi
from headrace_engine.native.program_enums import Gate, Limit

_address, _i32, _i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_f32 = ctypes.c_float


class RowCodes(IntEnum):
    """Eight bits an entry, with one scale a row: CoreRowCodes."""

    INT8 = 1
    FP8 = 2


class QuantizeRows(ctypes.Structure):
    """CoreQuantizeRows."""

    _fields_ = (
        ("x", _address),
        ("out", _address),
        ("scales", _address),
        ("rows", _i64),
        ("width", _i64),
        ("dtype", _i32),
        ("codes", _i32),
    )


class RmsNormCodes(ctypes.Structure):
    """CoreRmsNormCodes."""

    _fields_ = (
        ("x", _address),
        ("residual", _address),
        ("weight", _address),
        ("residual_out", _address),
        ("out", _address),
        ("scales", _address),
        ("rows", _i64),
        ("hidden", _i64),
        ("eps", _f32),
        ("dtype", _i32),
        ("codes", _i32),
    )


class GatedRows(ctypes.Structure):
    """CoreGatedRows."""

    _fields_ = (
        ("gate", _address),
        ("up", _address),
        ("out", _address),
        ("scales", _address),
        ("rows", _i64),
        ("width", _i64),
        ("gate_stride", _i64),
        ("up_stride", _i64),
        ("dtype", _i32),
        ("activation", _i32),
        ("codes", _i32),
    )


class ScaledSums(ctypes.Structure):
    """CoreScaledSums."""

    _fields_ = (
        ("sums", _address),
        ("row_scales", _address),
        ("scales", _address),
        ("bias", _address),
        ("out", _address),
        ("rows", _i64),
        ("width", _i64),
        ("dtype", _i32),
    )


class GatherRows(ctypes.Structure):
    """CoreGatherRows."""

    _fields_ = (
        ("table", _address),
        ("ids", _address),
        ("out", _address),
        ("rows", _i64),
        ("width", _i64),
        ("count", _i64),
        ("dtype", _i32),
    )


class CodedLimit(IntEnum):
    """CoreCodedLimit."""

    ROWS = 64


class Coded(ctypes.Structure):
    """CoreCoded."""

    _fields_ = (
        ("data", _address),
        ("outputs", _i64),
        ("inputs", _i64),
        ("bits", _i32),
        ("group", _i32),
        ("scales", _i32),
        ("offsets", _i32),
        ("zero", _i32),
        ("dtype", _i32),
    )


class CodedPack(ctypes.Structure):
    """CoreCodedPack."""

    _fields_ = (
        ("matrix", ctypes.POINTER(Coded)),
        ("codes", _address),
        ("row_scales", _address),
        ("row_offsets", _address),
        ("first_row", _i64),
        ("rows", _i64),
    )


class CodedLinear(ctypes.Structure):
    """CoreCodedLinear."""

    _fields_ = (
        ("matrix", Coded),
        ("x", _address),
        ("bias", _address),
        ("out", _address),
        ("room", _address),
        ("rows", _i64),
        ("splits", _i32),
    )


class CodedRows(ctypes.Structure):
    """CoreCodedRows."""

    _fields_ = (
        ("matrix", Coded),
        ("ids", _address),
        ("out", _address),
        ("rows", _i64),
        ("first", _i64),
    )


class SampleRows(ctypes.Structure):
    """CoreSampleRows."""

    _fields_ = (
        ("logits", _address),
        ("sampling", _address),
        ("sampled", _address),
        ("top_ids", _address),
        ("top_logprobs", _address),
        ("room", _address),
        ("rows", _i64),
        ("vocab", _i64),
        ("dtype", _i32),
    )


ENUMS: dict[str, tuple[type[IntEnum], ...]] = {
    "CORE_ROW_CODES_": (RowCodes,),
    "CORE_GATE_": (Gate,),
    "CORE_CODED_": (CodedLimit,),
    "CORE_": (Limit,),
}
"""By the prefix of their constants."""

OPS: dict[str, type[ctypes.Structure]] = {
    "quantize_rows": QuantizeRows,
    "rms_norm_codes": RmsNormCodes,
    "gated_rows": GatedRows,
    "scaled_sums": ScaledSums,
    "gather_rows": GatherRows,
    "coded_linear": CodedLinear,
    "coded_rows": CodedRows,
    "sample_rows": SampleRows,
}
"""Parameter structs by op."""

RECORDS: dict[str, type[ctypes.Structure]] = {
    "CoreQuantizeRows": QuantizeRows,
    "CoreRmsNormCodes": RmsNormCodes,
    "CoreGatedRows": GatedRows,
    "CoreScaledSums": ScaledSums,
    "CoreGatherRows": GatherRows,
    "CoreCoded": Coded,
    "CoreCodedPack": CodedPack,
    "CoreCodedLinear": CodedLinear,
    "CoreCodedRows": CodedRows,
    "CoreSampleRows": SampleRows,
    **sampling_abi.RECORDS,
}
"""By their names in C."""
