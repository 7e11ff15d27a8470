"""The machine: processor, cores, memory, and the libraries that compute."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec

import torch
from headrace_proto.pure.faults import is_fault

from headrace_engine import __version__
from headrace_engine.backends.cpu.threads import choose_threads
from headrace_engine.backends.cuda.device.cards import driver_version, shown_version, too_old
from headrace_engine.backends.host import cpu_quota, host_memory, memory_limit
from headrace_engine.backends.kv_size import amount
from headrace_engine.environment import ISA_VARIABLE, forced_isa
from headrace_engine.errors import HeadraceError
from headrace_engine.native import choose_isa, load, machine_isas
from headrace_engine.process.devices import has_cuda
from headrace_engine.service.program.doctor.findings import Finding


def examine_machine() -> Iterator[Finding]:
    """Yield what there is to compute with."""
    versions = {"headrace": __version__, "python": platform.python_version()}
    yield Finding("version", f"headrace-engine {__version__}, Python {versions['python']}", None, versions)
    yield _processor()
    yield _cores()
    yield _memory()
    yield from _libraries()
    yield from _cards()


def _processor() -> Finding:
    try:
        native = load("cpu")
        levels = [isa.name.lower() for isa in machine_isas(native)]
        taken = choose_isa(native).name.lower()
    except HeadraceError as error:
        return Finding("processor", error.message, None)
    forced = f", forced by {ISA_VARIABLE}" if forced_isa() else ""
    facts = {"levels": levels, "taken": taken, "forced": forced_isa()}
    return Finding("processor", f"has {', '.join(levels)}; the cpu backend takes {taken}{forced}", None, facts)


def _cores() -> Finding:
    threads, quota = choose_threads(0), cpu_quota()
    limit = "no quota of a control group" if quota is None else f"quota of the control groups {quota:g}"
    facts = {
        "processors": os.cpu_count(),
        "allowed": len(os.sched_getaffinity(0)),
        "quota": quota,
        "threads": threads.count,
        "pinned": threads.cpus is not None,
    }
    text = f"{threads.reason} that this process may use, of {facts['processors']}; {limit}: {threads.count} threads"
    return Finding("cores", text, None, facts)


def _memory() -> Finding:
    total, limit = host_memory(), memory_limit()
    facts = {"host": total, "limit": limit}
    limited = f", limited to {amount(limit)} by control groups" if limit < total else ", no limit of a control group"
    return Finding("memory", f"{amount(total)}{limited}", None, facts)


def _libraries() -> Iterator[Finding]:
    version, cuda = str(torch.__version__), torch.version.cuda
    built = "a CPU build" if cuda is None else f"for CUDA {cuda}"
    yield Finding("torch", f"{version}, {built}", None, {"version": version, "cuda": cuda})
    yield _cupy()
    driver = driver_version()
    text = "none (libcuda.so.1)" if driver is None else f"for CUDA {shown_version(driver)}"
    yield Finding("driver", f"NVIDIA driver: {text}", None, {"cuda": None if driver is None else shown_version(driver)})


def _cupy() -> Finding:
    if find_spec("cupy") is None:
        text = "not installed; the cuda backend and logits processors in CUDA need it: headrace-engine[cuda]"
        return Finding("cupy", text, None, {"version": None})
    try:
        import cupy
    except BaseException as error:
        if not is_fault(error):
            raise
        return Finding("cupy", f"cannot be imported: {error}", None, {"version": None})
    return Finding("cupy", cupy.__version__, None, {"version": cupy.__version__})


def _cards() -> Iterator[Finding]:
    if not has_cuda():
        return
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        problem = too_old(card.name, (card.major, card.minor))
        text = f"{card.name}, {amount(card.total_memory)}, compute capability {card.major}.{card.minor}"
        facts = {"name": card.name, "memory": card.total_memory, "capability": f"{card.major}.{card.minor}"}
        yield Finding(f"card {index}", f"{text}; not for the cuda backend: {problem}" if problem else text, None, facts)
