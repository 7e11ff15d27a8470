"""compressed-tensors: schemes for groups of modules, packed codes, integers of eight bits, or numbers of eight bits."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.quantization.modules import (
    SCALES,
    WORD,
    Modules,
    Replaced,
    block_sizes,
    check,
    check_matrix,
    check_only,
    check_unset,
    count_groups,
    matrix,
    numbers_matrix,
    own_group,
    read_group,
    scale_bits,
)
from headrace_engine.models.loaders.quantization.targets import Patterns
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.quantized_rows import GROUPS, QuantizedType

_FORMATS = {
    "pack-quantized": ("int",),
    "int-quantized": ("int",),
    "float-quantized": ("float",),
    "naive-quantized": ("int", "float"),
}
"""Types of weights by format."""
_ORDERS = (None, False, "weight", "static")
"""Values of `actorder` that do not change what is stored."""
_OF_ACTIVATIONS = ("input_scale", "input_zero_point")


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How some modules are quantized.

    Attributes:
        targets: which modules.
        fields: its `weights`.
        group: inputs that share a scale; 0: all.
        height: outputs that share a scale; 0: all.
    """

    targets: Patterns
    fields: ConfigFields
    format: str
    bits: int
    is_float: bool
    symmetric: bool
    group: int
    height: int


def read_compressed_tensors(fields: ConfigFields, tensors: Mapping[str, StoredTensor]) -> Replaced:
    """Read a checkpoint of compressed-tensors; see `replace_quantized`."""
    check_unset(fields, "kv_cache_scheme", "transform_config", "moe_sparsity_config")
    sparsity = fields.table("sparsity_config")
    if sparsity is not None and sparsity.get("format") != "dense":
        raise fields.error("sparsity_config", "is not supported; supported is the format dense")
    schemes, warnings = _schemes(fields)
    ignored, modules = Patterns(fields, "ignore"), Modules(tensors)
    dropped = [tensor for module in _quantized(modules) for tensor in _take_activations(modules, module)]
    for module in _quantized(modules):
        scheme = _scheme_of(module, schemes, ignored, fields)
        modules.put(module, _matrix(modules, module, scheme))
    _check_numbers(modules, schemes, ignored)
    return Replaced(modules.rest, tuple(warnings + _of_dropped(dropped)))


def _quantized(modules: Modules) -> list[str]:
    return [*dict.fromkeys([*modules.having("weight_packed"), *modules.having("weight_scale")])]


def _take_activations(modules: Modules, module: str) -> list[str]:
    taken = (modules.take_if_there(module, suffix) for suffix in _OF_ACTIVATIONS)
    return [tensor.name for tensor in taken if tensor is not None]


def _of_dropped(names: list[str]) -> list[str]:
    return [f"not used, since activations are not quantized by the file: {len(names)} scales"] if names else []


def _schemes(fields: ConfigFields) -> tuple[list[_Scheme], list[str]]:
    groups = fields.table("config_groups")
    if groups is None:
        raise fields.error("config_groups", "must be an object with at least one group")
    schemes, warnings = [], []
    for name in fields.get("config_groups"):
        group = groups.table(name)
        if group is None:
            raise groups.error(name, "must be an object with targets and weights")
        schemes.append(_scheme(fields, group))
        if group.get("input_activations") is not None:
            where = f"{groups.prefix}{name}.input_activations"
            warnings.append(f"{fields.source}: {where} is not applied: activation_quant of an install quantizes them")
    return schemes, warnings


def _scheme(fields: ConfigFields, group: ConfigFields) -> _Scheme:
    check_unset(group, "output_activations")
    weights = group.table("weights")
    if weights is None:
        raise group.error("weights", "must be an object: groups without are not supported")
    source = group if group.get("format") is not None else fields
    kind = str(check_only(source, "format", tuple(_FORMATS), None))
    is_float = check_only(weights, "type", _FORMATS[kind], "int") == "float"
    bits = int(str(check_only(weights, "num_bits", (4, 8) if kind == "pack-quantized" else (8,), 8)))
    if not any(weights.get("actorder") is each or weights.get("actorder") == each for each in _ORDERS):
        raise weights.error("actorder", "is not supported; supported are weight and static")
    check_unset(weights, "dynamic")
    group_size, height = _extent(weights)
    return _Scheme(
        targets=Patterns(group, "targets"),
        fields=weights,
        format=kind,
        bits=bits,
        is_float=is_float,
        symmetric=weights.flag("symmetric", True),
        group=group_size,
        height=height,
    )


def _extent(weights: ConfigFields) -> tuple[int, int]:
    """Return how many inputs and how many outputs share a scale; 0: all."""
    size = weights.get("group_size")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = check_only(weights, "strategy", ("tensor", "channel", "group", "block"), default)
    if strategy == "group":
        group = read_group(weights)
        if not group:
            raise weights.error("group_size", "must be a number of inputs for the strategy group")
        return group, 1
    if strategy == "block":
        return block_sizes(weights, "block_structure")
    return 0, int(strategy == "channel")


def _scheme_of(module: str, schemes: list[_Scheme], ignored: Patterns, fields: ConfigFields) -> _Scheme:
    if ignored.rank(module) is not None:
        raise fields.error("ignore", f"leaves out {module}, but the file has it quantized")
    ranks = [(rank, index) for index, scheme in enumerate(schemes) if (rank := scheme.targets.rank(module)) is not None]
    if not ranks:
        raise fields.error("config_groups", f"has no group with {module}, but the file has it quantized")
    return schemes[min(ranks)[1]]


def _check_numbers(modules: Modules, schemes: list[_Scheme], ignored: Patterns) -> None:
    """Check that no matrix is stored as numbers that the config says is quantized."""
    for module in modules.having("weight"):
        tensor = modules.rest[f"{module}.weight"]
        if tensor.assembly is not None or len(tensor.shape) != 2 or ignored.rank(module) is not None:
            continue
        if any(scheme.targets.surely_has(module) for scheme in schemes):
            raise tensor.error("is stored as numbers, but quantization_config.config_groups says it is quantized")


def _matrix(modules: Modules, module: str, scheme: _Scheme) -> StoredTensor:
    if scheme.format == "pack-quantized":
        return _packed(modules, module, scheme)
    codes = modules.take(module, "weight")
    outputs, inputs = check_matrix(codes, ("F8_E4M3",) if scheme.is_float else ("I8",))
    scales = _scales(modules, module, (outputs, inputs), scheme)
    height = scheme.height or outputs
    if scheme.is_float:
        return numbers_matrix(module, codes, scales, scheme.group, height)
    parts = [codes, scales]
    if not scheme.symmetric:
        parts.append(check(modules.take(module, "weight_zero_point"), ("I8",), scales.shape))
    return _coded(module, (outputs, inputs), "INT8", parts, scheme, height)


def _packed(modules: Modules, module: str, scheme: _Scheme) -> StoredTensor:
    codes = modules.take(module, "weight_packed")
    outputs, words = check_matrix(codes, ("I32",))
    inputs = _inputs(modules.take(module, "weight_shape"), outputs, words * WORD // scheme.bits, WORD // scheme.bits)
    scales = _scales(modules, module, (outputs, inputs), scheme)
    parts = [codes, scales]
    if not scheme.symmetric:
        shape = (-(-outputs * scheme.bits // WORD), count_groups(inputs, scheme.group))
        parts.append(check(modules.take(module, "weight_zero_point"), ("I32",), shape))
    return _coded(module, (outputs, inputs), "PACKED", parts, scheme, scheme.height or outputs)


def _inputs(stored: StoredTensor, outputs: int, most: int, in_word: int) -> int:
    """Return the number of inputs that a module's `weight_shape` names, after checking it against its words."""
    check(stored, ("I64",), (2,))
    found = struct.unpack("<2q", map_tensor(stored))
    if found[0] != outputs or not most - in_word < found[1] <= most:
        expected = f"{outputs} rows of {most - in_word + 1} to {most}"
        raise stored.error(f"says {list(found)}, but the codes are {expected}")
    return int(found[1])


def _scales(modules: Modules, module: str, shape: tuple[int, int], scheme: _Scheme) -> StoredTensor:
    scales, (outputs, inputs) = modules.take(module, "weight_scale"), shape
    if not scheme.height:
        return check(scales, SCALES, scales.shape if scales.elements == 1 else (1,))
    rows = -(-outputs // scheme.height)
    flat = not scheme.group and scales.shape == (rows,)
    return check(scales, SCALES, (rows,) if flat else (rows, count_groups(inputs, scheme.group)))


def _coded(
    module: str, shape: tuple[int, int], layout: str, parts: list[StoredTensor], scheme: _Scheme, height: int
) -> StoredTensor:
    has_offsets = not scheme.symmetric
    if scheme.group and not own_group(scheme.group):
        text = f"is not supported with integers; {GROUPS[1]} must divide its width"
        raise scheme.fields.error("block_structure", text)
    kind = QuantizedType(scheme.bits, own_group(scheme.group), scale_bits(parts[1], has_offsets), has_offsets)
    return matrix(module, kind, shape, layout, parts, scheme.group, height)
