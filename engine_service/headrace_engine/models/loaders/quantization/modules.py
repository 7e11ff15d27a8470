"""Finds the tensors of quantized modules, and checks their types and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.files import Assembly, StoredTensor
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.quantized_rows import GROUPS, QuantizedType
from headrace_engine.models.table_rows import TableType

SCALES = ("F16", "BF16", "F32")
"""Storage types of scales."""
WORD = 32
"""Bits of a word of packed codes."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Tensors of a checkpoint, with one matrix in place of the tensors of each quantized module."""

    tensors: dict[str, StoredTensor]
    warnings: tuple[str, ...] = ()


class Modules:
    """The tensors of a checkpoint by module, from which the parts of quantized modules are taken.

    Args:
        tensors: by name.

    Attributes:
        rest: those that were not taken.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self.rest = dict(tensors)
        self._all = tensors

    def having(self, suffix: str) -> list[str]:
        """Return the names of the modules that have a tensor of this suffix."""
        return [name.removesuffix(f".{suffix}") for name in self.rest if name.endswith(f".{suffix}")]

    def take(self, module: str, suffix: str) -> StoredTensor:
        """Take one of a module's tensors.

        Raises:
            BadModel: there is none.
        """
        found = self.take_if_there(module, suffix)
        if found is None:
            beside = next(tensor for name, tensor in self._all.items() if name.startswith(f"{module}."))
            raise BadModel(f"{beside.file.name}: tensor {module}.{suffix} is absent, but the module is quantized")
        return found

    def take_if_there(self, module: str, suffix: str) -> StoredTensor | None:
        """Take one of a module's tensors; None: there is none."""
        return self.rest.pop(f"{module}.{suffix}", None)

    def put(self, module: str, weight: StoredTensor) -> None:
        """Put a matrix in place of what was taken.

        Raises:
            BadModel: the module has an unquantized matrix too.
        """
        if weight.name in self.rest:
            raise weight.error("is there both quantized and as numbers")
        self.rest[weight.name] = weight


def matrix(
    module: str,
    kind: QuantizedType | TableType,
    shape: tuple[int, int],
    layout: str,
    parts: Sequence[StoredTensor],
    group: int,
    height: int = 1,
    added: float = 0.0,
    order: StoredTensor | None = None,
) -> StoredTensor:
    """Return the matrix of a module, [outputs, inputs], as it is assembled from parts, the codes first.

    Args:
        order: the group of each input, where they do not follow one another: the matrix then has float32 numbers.
    """
    codes, nbytes, storage = parts[0], shape[0] * kind.row_bytes(shape[1]), kind.name
    made = Assembly(layout, tuple(parts), group, height=height, added=added)
    if order is not None:
        nbytes, storage = 4 * shape[0] * shape[1], "F32"
        made = Assembly(layout, (*parts, order), group, ordered=kind.name)
    return StoredTensor(f"{module}.weight", storage, shape, codes.file, codes.offset, nbytes, assembly=made)


def group_order(order: StoredTensor, group: int, count: int) -> StoredTensor | None:
    """Return what names the group of each input, of `count` ones; None: groups of `group` inputs follow one another.

    Raises:
        BadModel: a group is not there.
    """
    import numpy as np

    found = np.frombuffer(bytes(map_tensor(order)), dtype="<i4")
    wrong = np.flatnonzero((found < 0) | (found >= count))
    if len(wrong):
        raise order.error(f"puts input {wrong[0]} into group {found[wrong[0]]}; there are {count}")
    return None if (found == np.arange(len(found)) // group).all() else order


def numbers_matrix(module: str, codes: StoredTensor, scales: StoredTensor, group: int, height: int) -> StoredTensor:
    """Return a matrix of numbers of eight bits (e4m3), with a scale for so many inputs and outputs."""
    outputs, inputs = codes.shape
    group = group if group < inputs else 0
    return matrix(module, TableType("E4M3", group), (outputs, inputs), "E4M3", (codes, scales), group, height)


def block_sizes(fields: ConfigFields, name: str) -> tuple[int, int]:
    """Return how many inputs and how many outputs a block has, which files name in the other order.

    Raises:
        BadModel: the field is no list of two sizes.
    """
    sizes = fields.get(name)
    if not isinstance(sizes, list) or len(sizes) != 2 or any(type(each) is not int or each < 1 for each in sizes):
        raise fields.error(name, "must list two sizes of a block")
    return sizes[1], sizes[0]


def read_group(fields: ConfigFields, name: str = "group_size") -> int:
    """Return how many inputs share a scale; 0: all, for which files say −1.

    Raises:
        BadModel: no group of ours divides it.
    """
    if fields.get(name) in (-1, None):
        return 0
    group = fields.integer(name)
    if not own_group(group):
        raise fields.error(name, f"is not supported; supported are -1 and multiples of {GROUPS[1]}")
    return group


def own_group(group: int) -> int:
    """Return the largest of our groups that divides one of a file; 0: none does, or all inputs share a scale."""
    return max((own for own in GROUPS if own and group % own == 0), default=0) if group else 0


def scale_bits(scales: StoredTensor, has_offsets: bool) -> int:
    """Return the bits in which scales, and offsets that follow from them and zero points, are exact."""
    return 16 if scales.storage == "F16" and not has_offsets else 32


def count_groups(inputs: int, group: int) -> int:
    """Return the number of scales of a row."""
    return -(-inputs // group) if group else 1


def check(tensor: StoredTensor, storages: Sequence[str], shape: Sequence[int]) -> StoredTensor:
    """Return a part of a quantized module.

    Raises:
        BadModel: it has another type or shape.
    """
    if tensor.storage not in storages or tensor.shape != tuple(shape):
        expected = f"{' or '.join(storages)} {list(shape)}"
        raise tensor.error(f"is {tensor.storage} {list(tensor.shape)}, but the quantized module needs {expected}")
    return tensor


def check_matrix(tensor: StoredTensor, storages: Sequence[str]) -> tuple[int, int]:
    """Return the shape of the tensor with a module's codes.

    Raises:
        BadModel: it has another type, is no matrix, or is empty.
    """
    if tensor.storage not in storages or len(tensor.shape) != 2 or not tensor.elements:
        expected = f"a matrix of {' or '.join(storages)}"
        raise tensor.error(
            f"is {tensor.storage} {list(tensor.shape)}, but the codes of a quantized module are {expected}"
        )
    return tensor.shape[0], tensor.shape[1]


def check_whole(tensor: StoredTensor, count: int, multiple: int) -> None:
    """Check that outputs fill whole words.

    Raises:
        BadModel: they do not.
    """
    if count % multiple:
        raise tensor.error(f"has {count} outputs, which zero points of {WORD // multiple} bits do not fill")


def check_unset(fields: ConfigFields, *names: str) -> None:
    """Refuse settings that change what a checkpoint holds in a way that is not supported.

    Raises:
        BadModel: one of them is neither absent nor false nor empty.
    """
    for name in names:
        if fields.get(name) not in (None, False, 0, "", [], {}):
            raise fields.error(name, "is not supported")


def check_only(fields: ConfigFields, name: str, allowed: Sequence[object], default: object) -> object:
    """Return a setting of which only some values are supported.

    Raises:
        BadModel: it has another value.
    """
    value = default if fields.get(name) is None else fields.get(name)
    if not any(value == each and type(value) is type(each) for each in allowed):
        raise fields.error(name, f"is not supported; supported are {', '.join(map(str, allowed))}")
    return value


def is_zero_bias(tensor: StoredTensor, tensors: Mapping[str, StoredTensor]) -> bool:
    """True for biases of quantized modules that are zero: some programs write them where a model has none."""
    weight = tensors.get(f"{tensor.name.removesuffix('.bias')}.weight")
    if not tensor.name.endswith(".bias") or weight is None or weight.assembly is None:
        return False
    return tensor.shape == weight.shape[:1] and not map_tensor(tensor).tobytes().strip(b"\0")
