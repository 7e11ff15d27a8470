"""Exchanges between ranks, each of which has threads of its own, at every instruction set."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
from headrace_engine.native import Code, Cpu, Exchange, Native, NativeError, Program, exchange_bytes
from native.one_program import Floats, OneProgram, Values

ROWS, WIDTH = 9, 48
"""Rows of each rank's table, and columns of its part."""
PART = ROWS * WIDTH * 3 * 4
"""Bytes of whole rows of three ranks."""
TURNS = 40
"""Exchanges of a run after its first."""
RUNS = 25


@contextmanager
def exchanges(native: Native, ranks: int, part_bytes: int = PART) -> Iterator[list[Exchange]]:
    """The ends of all ranks."""
    with ExitStack() as stack:
        file = os.memfd_create("ranks")
        stack.callback(os.close, file)
        os.ftruncate(file, exchange_bytes(native, ranks, part_bytes))
        yield [stack.enter_context(closing(Exchange(native, file, rank, ranks, part_bytes))) for rank in range(ranks)]


def program_of(cpu: Cpu, rank: int, ranks: int, rows: Floats, turns: int = TURNS) -> OneProgram:
    """A rank that takes its columns of whole rows, doubles them and gathers again, over and over.

    Args:
        rows: of the embedding table, of which rank 0's are looked up.
    """

    def record(program: Program, v: Values) -> None:
        program.gather(v["x"], v["whole"], table_rows=len(rows))
        for _ in range(turns):
            program.columns(v["whole"], v["part"], rank * WIDTH)
            program.scaled(v["part"], v["part"], 2.0)
            program.gather(v["part"], v["whole"])

    widths = {"whole": ranks * WIDTH, "part": WIDTH}
    return OneProgram(cpu, {"x": rows}, widths, record, rank=rank, ranks=ranks, vocab=ranks * len(rows))


def random_rows(ranks: int) -> Floats:
    return np.random.default_rng(ranks).standard_normal((ROWS, ranks * WIDTH)).astype(np.float32)


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_get_all_parts_of_every_exchange(cpu: Cpu, ranks: int) -> None:
    """A part of an exchange before, or of the one after, would have another factor."""
    rows = random_rows(ranks)
    with ExitStack() as stack:
        ends = stack.enter_context(exchanges(cpu.native, ranks))
        threads = stack.enter_context(ThreadPoolExecutor(ranks))
        programs = []
        for rank, end in enumerate(ends):
            own = stack.enter_context(Cpu(cpu.native, 2, isa=cpu.isa))
            one = program_of(own, rank, ranks, rows if rank == 0 else np.full_like(rows, rank))
            stack.callback(one.program.close)
            one.program.join(end)
            programs.append(one)
        for _ in range(RUNS):
            for values in threads.map(OneProgram.run, programs):
                np.testing.assert_array_equal(values["whole"], rows * np.float32(2**TURNS))


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_are_added_in_the_order_of_the_ranks(cpu: Cpu, ranks: int) -> None:
    """On every rank, whichever comes last; in place, and a second time."""
    width = WIDTH + 5
    rng = np.random.default_rng(ranks)
    parts = [(rng.standard_normal((ROWS, width)) * 10.0**rank).astype(np.float32) for rank in range(ranks)]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part

    def program_of_rank(own: Cpu, rank: int) -> OneProgram:
        def record(program: Program, v: Values) -> None:
            program.gather(v["x"], v["whole"], table_rows=ROWS)  # Rank 0 has the ids.
            program.columns(v["whole"], v["part"], rank * width)
            program.reduce(v["part"], v["sum"])
            program.reduce(v["part"], v["part"])

        widths = {"whole": ranks * width, "part": width, "sum": width}
        rows = np.concatenate(parts, axis=1)
        return OneProgram(own, {"x": rows}, widths, record, rank=rank, ranks=ranks, vocab=ranks * ROWS)

    with ExitStack() as stack:
        ends = stack.enter_context(exchanges(cpu.native, ranks, ROWS * ranks * width * 4))
        threads = stack.enter_context(ThreadPoolExecutor(ranks))
        programs = []
        for rank, end in enumerate(ends):
            one = program_of_rank(stack.enter_context(Cpu(cpu.native, 2, isa=cpu.isa)), rank)
            stack.callback(one.program.close)
            one.program.join(end)
            programs.append(one)
        for _ in range(RUNS):
            for values in threads.map(OneProgram.run, programs):
                np.testing.assert_array_equal(values["sum"], expected)
                np.testing.assert_array_equal(values["part"], expected)


def test_a_run_whose_ranks_do_not_come_ends_when_it_is_told(cpu: Cpu) -> None:
    with ExitStack() as stack:
        first, other = stack.enter_context(exchanges(cpu.native, 2))
        one = program_of(cpu, 0, 2, random_rows(2))
        stack.callback(one.program.close)
        one.program.join(first)
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(one.run)
        other.leave()
        for run in (waiting.result, one.run):
            with pytest.raises(NativeError, match="another rank of the model is gone") as error:
                run()
            assert error.value.code is Code.RANK_LOST


def test_a_program_with_exchanges_runs_only_with_its_ranks(cpu: Cpu) -> None:
    one = program_of(cpu, 1, 2, random_rows(2))
    with pytest.raises(NativeError, match="must be bound to a pool, and have joined its ranks, first"):
        one.run()
    assert one.program.part_bytes == ROWS * 2 * WIDTH * 4
    with exchanges(cpu.native, 2) as (first, _), exchanges(cpu.native, 2, one.program.part_bytes - 4) as (_, small):
        for wrong in (first, small):
            with pytest.raises(NativeError, match="program_join") as error:
                one.program.join(wrong)
            assert error.value.code is Code.BAD_SHAPE
    one.program.close()


def test_what_does_not_fit_an_exchange_is_refused(cpu: Cpu) -> None:
    """A program of one rank, a part too narrow, tables too small, and columns beyond the last."""
    rows = random_rows(2)

    def refused(name: str, op: str, *numbers: int, ranks: int = 2, width: int = 2 * WIDTH) -> None:
        def record(program: Program, v: Values) -> None:
            with pytest.raises(NativeError, match=name):
                getattr(program, op)(v["x"], v["out"], *numbers)

        OneProgram(cpu, {"x": rows}, {"out": width}, record, ranks=ranks, vocab=max(1, ranks) * ROWS).program.close()

    refused("gather: out", "gather", ranks=1)
    refused("gather: out", "gather", width=4 * WIDTH + 1)
    refused("gather: out", "gather", ROWS, width=WIDTH)
    refused("gather: table_rows", "gather", ROWS - 1)
    refused("reduce: out", "reduce", ranks=1)
    refused("reduce: out", "reduce", width=WIDTH)
    refused("columns: first", "columns", 1)
    refused("columns: first", "columns", -1, width=WIDTH)


def test_the_file_of_an_exchange_has_its_size(cpu: Cpu) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(exchange_bytes(cpu.native, 2, PART) - 1)
        with pytest.raises(NativeError, match="exchange_open: file"):
            Exchange(cpu.native, file.fileno(), 0, 2, PART)
    for ranks, part in ((1, PART), (65, PART), (2, 0)):
        with pytest.raises(ValueError, match=f"{ranks} ranks cannot exchange parts of {part} bytes"):
            exchange_bytes(cpu.native, ranks, part)
