"""Reads rows of stored tensors in the order and with the padding of this backend."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.weights.blocks import block_type
from headrace_engine.backends.cpu.weights.numbers import PLAIN, Floats, to_float32
from headrace_engine.errors import BadModel
from headrace_engine.models.blocks import dequantized
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.spec import DecoderSpec

HEAD_MULTIPLE = 16
"""Heads are padded with zeros to a multiple of this."""

Order = NDArray[np.int64]
"""For each position, the index of its entry in the file; −1: a zero."""


def padded_head_dim(spec: DecoderSpec) -> int:
    """Return the number of entries of a padded head."""
    return -(-spec.head_dim // HEAD_MULTIPLE) * HEAD_MULTIPLE


@dataclass(frozen=True, slots=True)
class Orders:
    """Permutations of a tensor's rows and columns; None: unchanged."""

    rows: Order | None = None
    columns: Order | None = None


def orders_of(info: TensorInfo, spec: DecoderSpec) -> Orders:
    """Return the orders that pad heads and separate interleaved rotary pairs into halves."""
    part = info.name.rpartition(".")[2]
    if part == "o":
        return Orders(columns=_head_order(spec.num_heads, spec))
    of_keys = dict.fromkeys(("k", "v", "k_spread"), spec.num_kv_heads)
    heads = {"q": spec.num_heads, **of_keys}.get(part.removesuffix("_bias"))
    if part in ("q_norm", "k_norm"):
        heads = info.shape[0] // spec.head_dim
    if heads is None:
        return Orders()
    return Orders(rows=_head_order(heads, spec, info.rotary_dim))


def _head_order(heads: int, spec: DecoderSpec, interleaved: int = 0) -> Order | None:
    """Return the order of the rows of heads, of which the first `interleaved` hold rotary pairs adjacent."""
    dim, padded = spec.head_dim, padded_head_dim(spec)
    if dim == padded and not interleaved:
        return None
    order = np.full((heads, padded), -1, dtype=np.int64)
    inside = np.arange(dim)
    inside[:interleaved] = inside[:interleaved].reshape(-1, 2).T.reshape(-1)
    order[:, :dim] = np.arange(heads)[:, None] * dim + inside
    return order.reshape(-1)


class TensorRows:
    """One tensor, whose rows are read in parts. It is mapped, or assembled, once rows are read; any thread may do that.

    Args:
        info: the tensor.
        orders: its permutations.

    Attributes:
        stored: its form in the file.
        outputs, inputs: number of rows and columns, with padding; a vector is one row.
    """

    def __init__(self, info: TensorInfo, orders: Orders) -> None:
        stored = info.stored
        is_vector = len(stored.shape) == 1
        self.stored = stored
        self._rows = None if is_vector else orders.rows
        self._columns = orders.rows if is_vector else orders.columns
        self._width = stored.shape[-1]
        self._count = 1 if is_vector else stored.shape[0]
        self.outputs = self._count if self._rows is None else len(self._rows)
        self.inputs = self._width if self._columns is None else len(self._columns)
        self._read = Lock()
        self._whole: NDArray[np.uint8] | BadModel | None = None

    @property
    def preserves_blocks(self) -> bool:
        """True if its values are in blocks whose codes can be preserved."""
        return block_type(self.stored) is not None and self._columns is None

    def packed(self, first: int, last: int) -> NDArray[np.uint8]:
        """Return the bytes of rows first to last − 1; arbitrary ones for padding.

        Raises:
            BadModel: the file has changed since it was opened, or is damaged. The methods below raise the same.
        """
        whole = self._bytes()
        if self._rows is None:
            return whole[first:last]
        return whole[np.maximum(self._rows[first:last], 0)]

    def _bytes(self) -> NDArray[np.uint8]:
        with self._read:
            if self._whole is None:
                try:
                    self._whole = np.frombuffer(map_tensor(self.stored), dtype=np.uint8).reshape(self._count, -1)
                except BadModel as error:  # Other threads wait for it: each would read the file again.
                    self._whole = error
            if isinstance(self._whole, BadModel):
                raise self._whole
            return self._whole

    def padding(self, first: int, last: int) -> NDArray[np.bool_] | None:
        """Return a mask of these rows that is True for padding; None: there is none."""
        if self._rows is None:
            return None
        found = self._rows[first:last] < 0
        return found if found.any() else None

    def numbers(self, first: int, last: int) -> NDArray[Any]:
        """Return rows of a plain type as its numbers, contiguous; padding is 0."""
        return self._place(self.packed(first, last).view(PLAIN[self.stored.storage]), first, last)

    def floats(self, first: int, last: int) -> Floats:
        """Return rows of any type as float32, contiguous; padding is 0."""
        storage, packed = self.stored.storage, self.packed(first, last)
        if storage in PLAIN:
            values = to_float32(np.ascontiguousarray(packed).view(PLAIN[storage]), storage)
        elif (kind := block_type(self.stored)) is not None:
            values = kind.floats(packed)
        else:
            values = dequantized(self.stored, np.ascontiguousarray(packed))
        return self._place(values, first, last)

    def _place(self, values: NDArray[Any], first: int, last: int) -> NDArray[Any]:
        """Permute the columns, and zero the padding."""
        if self._columns is not None:
            values = np.where(self._columns < 0, values.dtype.type(0), values[:, self._columns])
        padding = self.padding(first, last)
        if padding is not None:
            values = np.where(padding[:, None], values.dtype.type(0), values)
        return np.require(values, requirements=["C", "A"])
