"""bitsandbytes: NF4, with scales that may be in codes, too, and integers of eight bits with a scale for each output."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

from headrace_engine.models.config_fields import INT32, ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.json_files import parse_object
from headrace_engine.models.loaders.quantization.modules import (
    Modules,
    Replaced,
    check,
    check_matrix,
    check_only,
    check_unset,
    matrix,
)
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.quantized_rows import SCALES_OF_A_SCALE, QuantizedType
from headrace_engine.models.table_rows import NF4, TableType

_STATE = "weight.quant_state.bitsandbytes__nf4"
_LONGEST_STATE = 4096
"""Maximum size of what a file says of a matrix, in bytes."""


def read_bitsandbytes(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of bitsandbytes; see `replace_quantized`."""
    modules = Modules(tensors)
    if fields.flag("load_in_8bit", False):
        for module in modules.having("SCB"):
            modules.put(module, _int8(modules, module))
        return Replaced(modules.rest)
    check_unset(fields, "load_in_8bit")
    check_only(fields, "load_in_4bit", (True,), False)
    check_only(fields, "bnb_4bit_quant_type", ("nf4",), "fp4")
    check_only(fields, "bnb_4bit_quant_storage", ("uint8",), "uint8")
    for module in modules.having(_STATE):
        modules.put(module, _nf4(modules, module))
    return Replaced(modules.rest)


def _int8(modules: Modules, module: str) -> StoredTensor:
    codes = modules.take(module, "weight")
    outputs, inputs = check_matrix(codes, ("I8",))
    scales = check(modules.take(module, "SCB"), ("F32",), (outputs,))
    layout = modules.take_if_there(module, "weight_format")
    if layout is not None and any(map_tensor(layout)):
        raise layout.error("is not 0: codes in another order than by rows are not supported")
    kind = QuantizedType(8, 0, 32, has_offsets=False)
    return matrix(module, kind, (outputs, inputs), "SCB", (codes, scales), 0)


def _nf4(modules: Modules, module: str) -> StoredTensor:
    codes, state = modules.take(module, "weight"), _state(modules.take(module, _STATE))
    shape, group = state.get("shape"), state.integer("blocksize")
    if not isinstance(shape, list) or len(shape) != 2 or any(type(each) is not int or each < 1 for each in shape):
        raise state.error("shape", "must list outputs and inputs")
    outputs, inputs = shape
    if group % 2 or inputs % group:
        raise state.error("blocksize", f"is not supported for {inputs} inputs: blocks must be even, and fill the rows")
    check(codes, ("U8",), (outputs * inputs // 2, 1))
    levels = check(modules.take(module, "weight.quant_map"), ("F32",), (len(NF4),))
    if bytes(map_tensor(levels)) != struct.pack(f"<{len(NF4)}f", *NF4):
        raise levels.error("is not the table of NF4")
    scales, count = modules.take(module, "weight.absmax"), outputs * inputs // group
    nested = modules.take_if_there(module, "weight.nested_absmax")
    check(scales, ("F32",) if nested is None else ("U8",), (count,))
    parts, added = (
        [replace(codes, shape=(outputs, inputs // 2)), replace(scales, shape=(outputs, inputs // group))],
        0.0,
    )
    if nested is not None:
        check_only(state, "nested_blocksize", (SCALES_OF_A_SCALE,), SCALES_OF_A_SCALE)
        table = check(modules.take(module, "weight.nested_quant_map"), ("F32",), (256,))
        parts += [table, check(nested, ("F32",), (-(-count // SCALES_OF_A_SCALE),))]
        added = state.number("nested_offset")
    return matrix(module, TableType("NF4", group), (outputs, inputs), "NF4", parts, group, added=added)


def _state(stored: StoredTensor) -> ConfigFields:
    """Return what a file says of a matrix."""
    if stored.storage != "U8" or not 0 < stored.nbytes <= _LONGEST_STATE:
        raise stored.error(f"is {stored.storage} {list(stored.shape)}, expected at most {_LONGEST_STATE} bytes")
    state = ConfigFields(parse_object(bytes(map_tensor(stored)), stored.name), stored.name)
    check_only(state, "quant_type", ("nf4",), None)
    state.integer("blocksize", maximum=INT32)
    return state
