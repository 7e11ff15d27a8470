"""Breakdown of one request's time: W1 by every path to the model, with each native call recorded.

Each path adds one part to the one before:

- runner: the cpu backend alone, called in a loop.
- in process: an engine in this process, with its core in a thread.
- own core: the same, with the core in a process of its own.
- engine: an engine service, over gRPC.
- gateway: a gateway before it.

For each path: the time from one id to the next, the part of it in the native call, and the time between two calls; the
time from the end of its call until the reader has an id; and the CPU time of an id in each process, including the
prompt's. The native call takes longer if others need its processors. The overhead of a path over the time in process is
compared round by round, since the load of a shared machine drifts. With a thread per CPU core, and with one less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Any

import psutil
from headrace import Client
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.engine import Engine
from headrace_engine.process import launch_process
from headrace_engine.service.inprocess.transport import InProcessTransport
from headrace_proto.server.logs import configure_library

from bench.common.models import BenchModels
from bench.common.quietness import LOUD, Quietness
from bench.cpu.call_record import CORE_PROGRAM, RECORDED_ENGINE, Record, new_record
from bench.cpu.whole_steps import alone, runner
from bench.peers.contestant import Form
from bench.peers.ours import FORMS, OurForm, Service, ask, install, service
from bench.peers.workloads import WORKLOADS, Arrivals

_FORM = FORMS["smol"][0]
_NEW = WORKLOADS["W1"].new
_INSIDE = "in process"

Cpu = Mapping[str, float]
"""CPU seconds so far, by process."""


@dataclass(frozen=True)
class Way:
    """One path to the model.

    Attributes:
        answer: requests _NEW ids after a prompt; returns their arrival times by `time.perf_counter`.
        processes: processes of the path, by name.
    """

    name: str
    threads: int
    answer: Callable[[list[int]], Arrivals]
    processes: Mapping[str, psutil.Process]

    def cpu(self) -> Cpu:
        """Return the CPU time of its processes so far."""
        return {name: sum(process.cpu_times()[:2]) for name, process in self.processes.items()}


@dataclass
class Series:
    """Measurements of one path, by round.

    Attributes:
        parts: milliseconds per id by part, and CPU microseconds by process.
        others: CPU cores that other processes used.
    """

    way: Way
    parts: list[Mapping[str, float]] = field(default_factory=list)
    cpu: list[Cpu] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def measure(self, prompt: list[int], record: Record, quietness: Quietness) -> None:
        """Measure a round."""
        quietness.wait()
        before = self.way.cpu()
        arrivals, others = quietness.watched(lambda: self.way.answer(prompt))
        self.cpu.append({name: (used - before[name]) / _NEW * 1e6 for name, used in self.way.cpu().items()})
        self.parts.append(_parts(arrivals, record))
        self.others.append(others)

    @property
    def quiet(self) -> set[int]:
        """Return the numbers of the quiet rounds; of all rounds if none was quiet."""
        every = range(len(self.others))
        return {number for number in every if self.others[number] < LOUD} or set(every)

    def over(self, other: Series) -> float:
        """Return the extra time per id over another path: the median of the rounds in which both were quiet."""
        rounds = self.quiet & other.quiet or self.quiet
        return median(self.parts[one]["ms"] / other.parts[one]["ms"] for one in rounds) - 1

    def row(self) -> dict[str, Any]:
        """Return the medians of the quiet rounds."""
        quiet = self.quiet
        parts = {name: round(median(self.parts[one][name] for one in quiet), 3) for name in self.parts[0]}
        cpu = {name: round(median(self.cpu[one][name] for one in quiet)) for name in self.cpu[0]}
        return {"threads": self.way.threads, "way": self.way.name, **parts, "cpu_us": cpu, "quiet": len(quiet)}


def _parts(arrivals: Arrivals, record: Record) -> dict[str, float]:
    """Return the milliseconds per id of one answer, by part.

    Raises:
        RuntimeError: the newest recorded calls are not those of this answer.
    """
    calls = record.calls(_NEW)
    counts = list(accumulate(count for _, count in arrivals))
    lates = [at - calls[count - 1][1] for (at, _), count in zip(arrivals, counts, strict=True)]
    if counts[-1] != _NEW or min(lates) < 0:
        raise RuntimeError(f"{counts[-1]} ids came, the first {min(lates):.4f} s after its call; expected {_NEW} later")
    steps = calls[1:]  # The first call is the prompt's.
    between = fmean(after[0] - before[1] for before, after in pairwise(steps))
    native = fmean(ended - began for began, ended in steps)
    return {
        "ms": (native + between) * 1e3,
        "native": native * 1e3,
        "between": between * 1e3,
        "late": fmean(lates) * 1e3,
    }


def split(models: BenchModels, count: int, quietness: Quietness) -> dict[str, Any]:
    """Measure all paths in turns; return their medians."""
    cores = psutil.cpu_count(logical=False) or 1
    with ExitStack() as stack:
        record = stack.enter_context(new_record())
        record.keep()
        servers = stack.enter_context(service(*RECORDED_ENGINE))
        counts = (cores, cores - 1) if cores > 1 else (1,)
        series = [Series(way) for threads in counts for way in _ways(stack, models, servers, threads)]
        for number in range(-1, count):  # The first round warms up.
            for one in series:
                prompt = WORKLOADS["W1"].prompts(3000 + number)[0]
                (one if number >= 0 else Series(one.way)).measure(prompt, record, quietness)
    inside = {one.way.threads: one for one in series if one.way.name == _INSIDE}
    rows = [{**one.row(), "over": round(one.over(inside[one.way.threads]), 3)} for one in series]
    return {"format": _FORM.form.name, "rows": rows}


def _ways(stack: ExitStack, models: BenchModels, servers: Service, threads: int) -> Iterator[Way]:
    name, settings = f"{_FORM.form.name}, {threads} threads", {**_FORM.settings, "num_threads": threads}
    form = OurForm(Form(name, _FORM.form.bits), _FORM.source, settings)
    here = {"client": psutil.Process()}
    loaded = stack.enter_context(runner(models, "smol", form))
    yield Way("runner", threads, partial(alone, loaded, new=_NEW), here)
    inside = stack.enter_context(Client("inprocess:"))
    install(inside, models, "smol", form)
    yield Way(_INSIDE, threads, _asking(inside, form), here)
    apart = stack.enter_context(_own_core())
    core = _new_core(here["client"], lambda: install(apart, models, "smol", form))
    yield Way("own core", threads, _asking(apart, form), {"core": core, **here})
    engine = psutil.Process(servers.engine.process.pid)
    core = _new_core(engine, lambda: install(servers.client, models, "smol", form))
    direct = stack.enter_context(Client(servers.engine.address))
    yield Way("engine", threads, _asking(direct, form), {"core": core, "engine": engine, **here})
    gateway = {"gateway": psutil.Process(servers.gateway.process.pid)}
    yield Way("gateway", threads, _asking(servers.client, form), {"core": core, "engine": engine, **gateway, **here})


def _asking(client: Client, form: OurForm) -> Callable[[list[int]], Arrivals]:
    def answer(prompt: list[int]) -> Arrivals:
        began = time.perf_counter()
        (arrivals,) = ask(client, form.model_name, [prompt], _NEW).arrivals
        return [(began + at, count) for at, count in arrivals]

    return answer


@contextmanager
def _own_core() -> Iterator[Client]:
    """Return a client of an engine in this process, with cores in processes of their own."""
    configure_library()
    launcher = partial(launch_process, program=CORE_PROGRAM)
    with Client(InProcessTransport(partial(Engine, EngineOptions(), launcher))) as client:
        yield client


def _new_core(parent: psutil.Process, start: Callable[[], object]) -> psutil.Process:
    """Return the process that starting a model creates."""
    before = parent.children()
    start()
    return next(child for child in parent.children() if child not in before and "core" in child.cmdline())
