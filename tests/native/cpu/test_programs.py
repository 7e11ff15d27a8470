"""The typed face of core_cpu: instruction sets, threads, memory, binding and running, and what they refuse."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from headrace_engine.environment import ISA_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.native import (
    Batch,
    Code,
    Cpu,
    Isa,
    Memory,
    Native,
    NativeError,
    NativeUnavailable,
    Program,
    Shape,
    abi,
    allocations,
    choose_isa,
)
from headrace_engine.native.errors import field_at, shown
from native.build import run
from native.one_program import OneProgram, Values


def one_norm(cpu: Cpu) -> OneProgram:
    def record(program: Program, v: Values) -> None:
        program.norm(np.ones(32, np.float32), v["x"], v["out"], 1e-5)

    return OneProgram(cpu, {"x": np.ones((3, 32), np.float32)}, {"out": 32}, record)


@pytest.fixture
def best(native: Native) -> Isa:
    return choose_isa(native, {})


@pytest.fixture
def threads(native: Native) -> Iterator[Cpu]:
    with Cpu(native, 2) as cpu:
        yield cpu


def test_without_the_variable_the_best_instruction_set_is_taken(native: Native, best: Isa) -> None:
    with Cpu(native, 1) as cpu:
        assert cpu.isa is best
    assert choose_isa(native, {ISA_VARIABLE: ""}) is best


def test_the_variable_forces_an_instruction_set(native: Native) -> None:
    assert choose_isa(native, {ISA_VARIABLE: "avx2"}) is Isa.AVX2


@pytest.mark.parametrize("text", ["sse", "AVX2", "none", "5"])
def test_an_unknown_instruction_set_is_refused_with_the_known(text: str, native: Native) -> None:
    with pytest.raises(InvalidArgument, match=f'HEADRACE_ISA = "{text}" .*; allowed: avx2'):
        choose_isa(native, {ISA_VARIABLE: text})


def test_an_instruction_set_that_the_machine_lacks_is_refused(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.handle, "core_cpu_has_isa", lambda isa: isa in (Isa.AVX2, Isa.AVX512))
    with pytest.raises(InvalidArgument, match=r'HEADRACE_ISA = "amx" .*; allowed: avx2, avx512$'):
        choose_isa(native, {ISA_VARIABLE: "amx"})
    monkeypatch.setattr(native.handle, "core_cpu_best_isa", lambda: Isa.NONE)
    with pytest.raises(NativeUnavailable, match="no AVX2"):
        choose_isa(native, {})


def test_threads_beyond_the_limit_are_refused(native: Native) -> None:
    with pytest.raises(NativeError, match=r"^cpu_create: threads = 1025: must be 1 to 1024$") as caught:
        Cpu(native, 1025)
    assert caught.value.code is Code.BAD_THREADS
    with pytest.raises(ValueError, match="1 processors for 2 threads"):
        Cpu(native, 2, cpus=[0])


@pytest.mark.parametrize("program", ["pool_cpu", "pool_watched"], ids=["plain", "thread sanitizer"])
def test_every_job_runs_once_after_those_of_the_phase_before(programs: Path, program: str) -> None:
    result = run(programs / program)
    assert (result.returncode, result.stdout) == (0, "")


def test_an_allocation_that_fails_is_a_status_and_leaves_nothing(programs: Path) -> None:
    result = run(programs / "memory_cpu")
    assert result.returncode == 0, result.stdout


def test_pinned_threads_compute(native: Native) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    with Cpu(native, len(cpus), cpus=cpus) as cpu:
        np.testing.assert_allclose(one_norm(cpu).run()["out"], 1.0, rtol=1e-4)


def test_memory_is_zeroed_aligned_and_counted(native: Native) -> None:
    before = allocations(native)
    memory = Memory(native, 5 * 2**20 + 3)
    assert allocations(native) == before + 1
    assert memory.address % 2**21 == 0
    assert not memory.view(0, memory.nbytes).any()
    with pytest.raises(ValueError, match="bytes 5242883 to 5242884 of 5242883"):
        memory.view(memory.nbytes, 1)
    memory.close()
    memory.close()
    with pytest.raises(ValueError, match="freed"):
        memory.view(0, 1)


def test_a_view_keeps_its_memory(native: Native) -> None:
    view = Memory(native, 100).view(0, 100)
    gc.collect()
    view[:] = 7
    assert view.sum() == 700


def test_memory_that_the_system_does_not_have_is_an_error(native: Native) -> None:
    with pytest.raises(NativeError, match="cannot allocate") as caught:
        Memory(native, 2**60)
    assert caught.value.code is Code.NO_MEMORY


def test_running_allocates_nothing(native: Native, threads: Cpu) -> None:
    program = one_norm(threads)
    pool = program.pool(4)
    program.run(pool)
    before = allocations(native)
    for _ in range(3):
        program.run(pool)
    assert allocations(native) == before


def test_the_sizes_of_a_program_are_known_before_it_is_bound(threads: Cpu) -> None:
    program = one_norm(threads).program
    assert program.workspace_bytes > 2 * 3 * 32 * 4
    assert program.block_bytes == 2 * 16 * 16 * 4
    with pytest.raises(ValueError, match="not bound"):
        program.value(abi.Value(0, 32, 1), 1)
    with pytest.raises(NativeError, match=r"^program_run: the program must be bound to a pool, and have joined its"):
        program.run(Batch())


def test_a_pool_that_is_too_small_is_refused(native: Native, threads: Cpu) -> None:
    program = one_norm(threads).program
    with pytest.raises(ValueError, match="3 blocks of 2048 bytes do not fit into 4096"):
        program.bind(Memory(native, 4096), 3)


def test_a_batch_that_does_not_fit_names_the_field(threads: Cpu) -> None:
    program = one_norm(threads)
    table = np.array([0, 9], dtype=np.int32)
    with pytest.raises(NativeError, match=r"^program_run: sequences") as caught:
        program.run(num_blocks=4, sequences=[(table, 15, 3)])
    assert (caught.value.code, caught.value.field) == (Code.BAD_BATCH, "sequences")


@pytest.mark.parametrize(
    ("field", "value"), [("heads", 3), ("head_dim", 24), ("block_size", 8), ("kv", 5), ("max_tokens", 0)]
)
def test_a_shape_that_cannot_be_names_the_field(field: str, value: int, threads: Cpu) -> None:
    numbers = {name: 16 for name, *_ in Shape._fields_} | {"kv_heads": 2, "kv": 1, "rank": 0, field: value}
    with pytest.raises(NativeError, match=f"^program_create: {field} = {value}: ") as caught:
        Program(threads, Shape(**numbers))
    assert caught.value.field == field


def test_a_closed_program_computes_nothing(threads: Cpu) -> None:
    program = one_norm(threads).program
    program.close()
    program.close()
    with pytest.raises(NativeError, match=r"^program_run: the pointer must not be null$"):
        program.run(Batch())


def test_closed_threads_record_nothing(native: Native) -> None:
    cpu = Cpu(native, 1)
    cpu.close()
    cpu.close()
    with pytest.raises(ValueError, match="have ended"):
        one_norm(cpu)


def test_fields_of_structs_in_structs_and_arrays_have_names() -> None:
    linear = abi.Linear
    size = ctypes.sizeof(abi.Projection)
    first = linear.projections.offset
    assert field_at(linear, linear.count.offset) == "count"
    assert field_at(linear, 0) == "x"
    assert field_at(linear, first + size + abi.Projection.out.offset) == "projections[1].out"
    assert field_at(linear, abi.Value.width.offset) == "x.width"
    found = linear(x=abi.Value(0, 7, 1))
    found.projections[1].weight = 0x1001
    assert shown(found, "x.width") == " = 7"
    assert [shown(found, f"projections[{i}].weight") for i in (0, 1)] == [" = null", " = 0x1001"]
    with pytest.raises(ValueError, match="no field at byte"):
        field_at(linear, ctypes.sizeof(linear))
