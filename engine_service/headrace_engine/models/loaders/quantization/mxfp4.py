"""MXFP4: blocks of 32 numbers of four bits (e2m1) with a power of two as their scale (e8m0), as gpt-oss has experts."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import Assembly, StoredTensor
from headrace_engine.models.loaders.quantization.modules import Replaced, check, check_unset
from headrace_engine.models.table_rows import MXFP4

_CODES, _SCALES = "_blocks", "_scales"


def read_mxfp4(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of MXFP4; see `replace_quantized`."""
    check_unset(fields, "dequantize")
    rest = dict(tensors)
    for codes in [tensor for name, tensor in tensors.items() if name.endswith(_CODES)]:
        name = codes.name.removesuffix(_CODES)
        scales = rest.pop(f"{name}{_SCALES}", None)
        if scales is None:
            raise BadModel(f"{codes.file.name}: tensor {name}{_SCALES} is absent, but {codes.name} is there")
        if name in rest:
            raise rest[name].error("is there both quantized and as numbers")
        rest[name] = _matrices(name, rest.pop(codes.name), scales)
    return Replaced(rest)


def _matrices(name: str, codes: StoredTensor, scales: StoredTensor) -> StoredTensor:
    """Return the matrices of all experts of a layer, [experts, outputs, inputs]."""
    if len(codes.shape) != 4:
        raise codes.error(f"is {codes.storage} {list(codes.shape)}, but codes of MXFP4 are U8 of four dimensions")
    experts, outputs, blocks, _ = codes.shape
    check(codes, ("U8",), (experts, outputs, blocks, MXFP4.block // 2))
    check(scales, ("U8",), (experts, outputs, blocks))
    made = Assembly("MXFP4", (codes, scales), MXFP4.block)
    inputs = blocks * MXFP4.block
    nbytes = experts * outputs * MXFP4.row_bytes(inputs)
    shape = (experts, outputs, inputs)
    return StoredTensor(name, MXFP4.name, shape, codes.file, codes.offset, nbytes, assembly=made)
