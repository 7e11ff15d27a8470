"""The adapters of the cpu backend: their factors as float32, in memory that is set aside once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headrace_engine.backends.adapters import matrix_shapes, open_planned_adapter
from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.backends.cpu.weights.numbers import Floats
from headrace_engine.backends.cpu.weights.rows import Orders, TensorRows, orders_of, padded_head_dim
from headrace_engine.backends.cpu.weights.storage import cut_rows
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.models.adapters.adapter import AdapterFiles, Factors
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import LowRank, MatrixRows


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The factors of all adapters for one matrix.

    Attributes:
        a: [adapters, rank, inputs].
        b: [adapters, rank, outputs].
        table: the same for the native library.
    """

    a: Floats
    b: Floats
    table: ctypes.Array[LowRank]


class CpuAdapters:
    """Factors of up to plan.lora_max_num adapters.

    Pages of memory that no adapter has used take none.

    Args:
        spec: the decoder, as its files have it.
        share: what this rank holds of the matrices, and so of their factors; None: all.

    Attributes:
        rank: largest rank.
        nbytes: bytes of all factors, if every adapter changes every matrix with the largest rank.
    """

    def __init__(self, plan: CorePlan, spec: DecoderSpec, share: CpuShare | None = None) -> None:
        self.rank = plan.lora_max_rank
        self._spec = spec
        self._share = share
        self._matrices = {
            name: _new(plan.lora_max_num, plan.lora_max_rank, *(shape if share is None else share.held(name, *shape)))
            for name, shape in matrix_shapes(spec, padded_head_dim(spec)).items()
        }
        self.nbytes = sum(each.a.nbytes + each.b.nbytes for each in self._matrices.values())

    def table(self, name: str) -> ctypes.Array[LowRank]:
        """Return what each adapter adds to a matrix; loading one changes it.

        It holds addresses of the factors, which this object owns: it must outlive the programs that read them.
        """
        return self._matrices[name].table

    def read(self, plan: AdapterPlan) -> Callable[[], None]:
        """Read an adapter; return what loads it under its number.

        Raises:
            BadModel: its files have changed, or do not fit.
        """
        return partial(self._load, plan.number - 1, open_planned_adapter(plan, self._spec))

    def _load(self, number: int, files: AdapterFiles) -> None:
        for matrix in self._matrices.values():
            matrix.table[number].rank = 0
        for name, factors in files.factors.items():
            self._put(self._matrices[name], number, name, factors)

    def _put(self, matrix: _Matrix, number: int, name: str, factors: Factors) -> None:
        share, rank = self._share, factors.rank
        orders = orders_of(factors.b, self._spec) if share is None else share.orders(factors.b, self._spec)
        a = _floats(factors.a, Orders(columns=orders.columns))
        columns = None if share is None else share.columns(name, a.shape[1])
        matrix.a[number, :rank] = a if columns is None else cut_rows(MatrixRows(a), columns, 0).numbers
        # Scaled in float32, as the sum would be.
        matrix.b[number, :rank] = _floats(factors.b, Orders(rows=orders.rows)).T * np.float32(factors.scale)
        matrix.table[number].rank = rank


def _floats(info: TensorInfo, orders: Orders) -> Floats:
    rows = TensorRows(info, orders)
    return rows.floats(0, rows.outputs)


def _new(adapters: int, rank: int, outputs: int, inputs: int) -> _Matrix:
    a: Any = np.zeros((adapters, rank, inputs), np.float32)
    b: Any = np.zeros((adapters, rank, outputs), np.float32)
    table = (LowRank * adapters)()
    for number, (first, second) in enumerate(zip(a, b, strict=True)):
        table[number] = LowRank(first.ctypes.data, second.ctypes.data, 0)
    return _Matrix(a, b, table)
