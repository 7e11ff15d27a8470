"""What `csrc/core_sampling.h` declares, in ctypes: how tokens are drawn from rows of logits."""

from __future__ import annotations

import ctypes

_f32, _f64, _i32, _u64 = ctypes.c_float, ctypes.c_double, ctypes.c_int32, ctypes.c_uint64
_address = ctypes.c_void_p


class LogitChanges(ctypes.Structure):
    """CoreLogitChanges."""

    _fields_ = (
        ("penalized", _address),
        ("penalties", _address),
        ("biased", _address),
        ("biases", _address),
        ("masked", _address),
        ("allowed", _address),
        ("repetition", _f32),
        ("penalized_count", _i32),
        ("biased_count", _i32),
        ("masked_count", _i32),
        ("allowed_words", _i32),
    )


class Sampling(ctypes.Structure):
    """CoreSampling."""

    _fields_ = (
        ("temperature", _f64),
        ("top_p", _f64),
        ("min_p", _f64),
        ("seed", _u64),
        ("changes", _address),
        ("top_k", _i32),
        ("position", _i32),
        ("index", _i32),
        ("logprob", _i32),
        ("top_logprobs", _i32),
    )


class Sampled(ctypes.Structure):
    """CoreSampled."""

    _fields_ = (("logprob", _f64), ("token", _i32), ("finite", _i32))


RECORDS: dict[str, type[ctypes.Structure]] = {
    "CoreLogitChanges": LogitChanges,
    "CoreSampling": Sampling,
    "CoreSampled": Sampled,
}
"""By their names in C."""
