"""How close the CPU core's kernels come to what the machine can do.

    python -m bench.kernels [WORDS ...] [--threads 2] [--isa amx] [--against FOLDER ...] [--seconds 0.5]
        [--rows 1,2,4,8] [--realtime] [--json FILE] [--no-steps]

Each op runs in a program of its own, over copies of its weights that no cache of a core holds. A line is an op, its
shape, format and rows; the best and the median time; the best rate, the limit that `limits.cpp` measured in the same
run, and what percentage of that limit it is. WORDS choose the ops whose lines have all of them. With `--against`
the same ops of other builds run in turns, and the last columns say how many times longer each takes. `--rows` are those
of products. FILE gets the lines too, as a list of objects.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Cpu, Isa, load

from bench.common.environment import variable_set
from bench.kernels.cases import Case, attentions, products, samplers
from bench.kernels.limits import Limits, measure
from bench.kernels.programs import Timed
from bench.kernels.steps import steps

_LEAST_ROUNDS = 5
_PAUSE = 0.05
_PRIORITY = 1


def main() -> None:
    """Measure, and print the table."""
    args = _arguments()
    prefix = ("chrt", "-f", str(_PRIORITY)) if args.realtime else ()
    limits = measure(args.threads, prefix, args.isa)
    print(f"memory {limits.memory:.1f} GB/s,", ", ".join(f"{k} {v:.0f} GOP/s" for k, v in limits.products.items()))
    cpus = [_cpu(folder, args.threads, args.isa) for folder in [None, *args.against]]
    found = []
    for case in _cases(limits, args.words, args.rows, args.steps):
        times = _times(cpus, case, args.seconds, args.realtime)
        print(_line(case, times), flush=True)
        found.append(_object(case, times[0]))
    if args.json:
        args.json.write_text(json.dumps(found), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rows", type=lambda text: [int(number) for number in text.split(",")], default=[])
    parser.add_argument("--isa", type=lambda name: Isa[name.upper()], default=Isa.NONE)
    parser.add_argument(
        "--against", type=Path, nargs="+", default=[], help="folders of other libcore_cpu.so to compare"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds for each op")
    parser.add_argument("--realtime", action="store_true", help="run at real-time priority, which needs the permission")
    parser.add_argument("--no-steps", dest="steps", action="store_false", help="measure single ops only")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser.parse_args()


def _cpu(folder: Path | None, threads: int, isa: Isa) -> Cpu:
    with variable_set(NATIVE_VARIABLE, folder) if folder else nullcontext():
        return Cpu(load("cpu"), threads, isa=isa)


def _cases(limits: Limits, words: list[str], rows: list[int], with_steps: bool) -> Iterator[Case]:
    kinds: list[Callable[[Limits], Iterator[Case]]] = [partial(products, numbers_of_rows=rows), attentions, samplers]
    for cases in [*kinds, *([steps] if with_steps else [])]:
        yield from (case for case in cases(limits) if all(word in case.name for word in words))


def _times(cpus: list[Cpu], case: Case, seconds: float, realtime: bool) -> list[list[float]]:
    """Return the seconds of one op for each library, in turns."""
    programs: list[Timed] = [case.timed(cpu) for cpu in cpus]
    times: list[list[float]] = [[] for _ in programs]
    for program in programs:
        program.run()
    spent, rounds = 0.0, 0
    while spent < seconds or rounds < _LEAST_ROUNDS:
        with _priority(realtime):
            for program, found in zip(programs, times, strict=True):
                began = time.perf_counter()
                program.run()
                taken = time.perf_counter() - began
                found.append(taken / program.ops)
                spent += taken / len(programs)
        rounds += 1
        if realtime:
            time.sleep(min(taken, _PAUSE))
    for program in programs:
        program.program.close()
    return times


@contextmanager
def _priority(realtime: bool) -> Iterator[None]:
    """Give all threads of this process priority over other programs."""
    if realtime:
        _schedule(os.SCHED_FIFO, _PRIORITY)
    try:
        yield
    finally:
        if realtime:
            _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def _object(case: Case, times: list[float]) -> dict[str, Any]:
    rate = case.amount / min(times) / 1e9
    return {
        "op": case.op,
        "shape": case.shape,
        "format": case.kind,
        "rows": case.rows,
        "best_us": round(min(times) * 1e6, 2),
        "median_us": round(median(times) * 1e6, 2),
        "rate": round(rate, 1),
        "limit": round(case.limit, 1),
        "unit": case.unit,
        "fraction": round(rate / case.limit, 3),
    }


def _line(case: Case, times: list[list[float]]) -> str:
    best, middle = min(times[0]), median(times[0])
    rate = case.amount / best / 1e9
    text = f"{case.op:9} | {case.shape:10} | {case.kind:20} | {case.rows:13} | "
    text += f"{best * 1e6:9.1f} us ({middle * 1e6:9.1f}) | {rate:7.1f} of {case.limit:6.0f} {case.unit:5} | "
    text += f"{100 * rate / case.limit:3.0f} %"
    others = (f" | {min(other) / best:.2f} ({median(other) / middle:.2f})" for other in times[1:])
    return text + "".join(others)


if __name__ == "__main__":
    main()
