"""Memory nodes: each one's threads multiply with the shard of the weights that lies there, and no others."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace_engine.native import Cpu, Format, Matrix, Memory, Native, NativeError, PackedMatrix, Product, Program
from native.cpu.test_linear import FORMATS
from native.one_program import STRIDE, OneProgram, Values, dense, random_weight

MADV_DONTNEED, MADV_NOHUGEPAGE = 4, 15
ROUNDS = 30
INPUTS = 2048
SHARD_PAGES = 64 * INPUTS * 4 // PAGESIZE
"""Of a shard of 64 outputs in float32."""


@pytest.fixture
def nodes(cpu: Cpu) -> Iterator[Cpu]:
    """Threads of two nodes, one and two, with the same kernels."""
    with Cpu(cpu.native, 3, nodes=(0, 1, 1), isa=cpu.isa) as nodes:
        yield nodes


@pytest.mark.parametrize("kind", FORMATS)
def test_shards_give_the_products_of_whole_matrices_bit_for_bit(cpu: Cpu, nodes: Cpu, kind: str) -> None:
    """Of several matrices in one op, with tiles that no two nodes share evenly, and with fewer tiles than nodes."""
    found = []
    for one in (cpu, nodes):
        rng = np.random.default_rng(5)
        weights = [random_weight(rng, one, Matrix(outputs, 96, **FORMATS[kind]))[0] for outputs in (300, 64, 200)]

        def record(program: Program, v: Values, weights: list[PackedMatrix] = weights) -> None:
            pairs = zip(weights, "abc", strict=True)
            program.linear(v["x"], [Product(weight, v[name]) for weight, name in pairs])

        widths = {"a": 300, "b": 64, "c": 200}
        for rows in (1, 2, 9, 260):
            x = rng.standard_normal((rows, 96)).astype(np.float32)
            values = OneProgram(one, {"x": x}, widths, record).run()
            found.append([values[name] for name in widths] + [dense(weight) for weight in weights])
    for together, apart in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        for one_array, other in zip(together, apart, strict=True):
            np.testing.assert_array_equal(one_array, other)


class Untouched:
    """A product with weights that no page of memory was taken for, by two threads of two nodes.

    Pages are small ones: whether the system has a large one at the moment is nobody's to say.
    """

    def __init__(self, native: Native, outputs: int) -> None:
        before = set(os.listdir("/proc/self/task"))
        self.cpu = Cpu(native, 2, nodes=(0, 1))
        (self.worker,) = set(os.listdir("/proc/self/task")) - before
        matrix = Matrix(outputs, INPUTS, Format.FLOAT32)
        self.memory = small_pages(Memory(native, 2 * STRIDE))
        weight = PackedMatrix(native, matrix, self.memory, shards=2, stride=STRIDE)

        def record(program: Program, v: Values) -> None:
            program.linear(v["x"], [Product(weight, v["out"])])

        self.program = OneProgram(self.cpu, {"x": np.ones((1, INPUTS), np.float32)}, {"out": outputs}, record)
        self.pool = self.program.pool(4)
        self.pages(10)

    def pages(self, rounds: int) -> int:
        """What the second thread read in some runs, before each of which all weights are given back."""
        begin = _faults(self.worker)
        for _ in range(rounds):
            assert _madvise(self.memory.address, self.memory.nbytes, MADV_DONTNEED) == 0
            assert not self.program.run(self.pool)["out"].any()
        return _faults(self.worker) - begin


_madvise: Any = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def small_pages(memory: Memory) -> Memory:
    assert _madvise(memory.address, memory.nbytes, MADV_NOHUGEPAGE) == 0
    return memory


def _faults(task: str) -> int:
    """Page faults of a thread so far that took no reading from a disk: those of code and stack among them."""
    return int(Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[7])


def test_a_node_reads_its_own_shard_and_all_of_it(native: Native) -> None:
    """Two tiles, one of each node: in every run, the pages of one."""
    pages = Untouched(native, 128).pages(ROUNDS)
    assert ROUNDS * SHARD_PAGES <= pages < (ROUNDS + 1) * SHARD_PAGES


def test_a_node_without_a_shard_reads_nothing(native: Native) -> None:
    assert Untouched(native, 64).pages(ROUNDS) < SHARD_PAGES


def test_memory_is_allocated_by_threads_of_its_node(native: Native) -> None:
    product = Untouched(native, 64)
    memory = small_pages(Memory(native, 4 * STRIDE))
    pages = STRIDE // PAGESIZE
    for taken in (pages, 0):  # Once.
        begin = _faults(product.worker)
        product.cpu.touch(memory, 64, STRIDE, 2 * STRIDE)
        assert taken <= _faults(product.worker) - begin < taken + SHARD_PAGES
    with pytest.raises(ValueError, match="bytes at 64"):
        product.cpu.touch(memory, 64, 2 * STRIDE, 2 * STRIDE)


@pytest.mark.parametrize("numbers", [(1, 0), (0, 2), (0, -1), (0, 64)])
def test_nodes_are_numbered_from_the_first_threads_own(native: Native, numbers: tuple[int, int]) -> None:
    with pytest.raises(NativeError, match=r"^cpu_create: nodes") as caught:
        Cpu(native, 2, nodes=numbers)
    assert caught.value.field == "nodes"


def test_shards_that_do_not_fit_are_refused(native: Native, cpu: Cpu, nodes: Cpu) -> None:
    """Where there are as many shards as another number of nodes, or where they would overlap."""
    weight, _ = random_weight(np.random.default_rng(1), nodes, Matrix(300, 96, Format.FLOAT32))

    def record(program: Program, v: Values) -> None:
        program.linear(v["x"], [Product(weight, v["out"])])

    with pytest.raises(NativeError, match=r"^linear: projections"):
        OneProgram(cpu, {"x": np.zeros((1, 96), np.float32)}, {"out": 300}, record)
    memory = Memory(native, STRIDE)
    with pytest.raises(ValueError, match="2 times"):
        PackedMatrix(native, weight.matrix, memory, shards=2, stride=64)
