"""Effects of sharing CPU cores with other processes, and the duration of a start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import psutil
from headrace_engine.environment import CACHE_VARIABLE
from support.servers.processes import running

from bench.common.environment import variable_set
from bench.common.models import BenchModels
from bench.common.quietness import Quietness
from bench.cpu.rounds import rounds
from bench.peers.contestant import Contestant, Form
from bench.peers.ours import FORMS, OurForm, service
from bench.peers.peers import Peers
from bench.peers.workloads import WORKLOADS

_FORM = FORMS["smol"][0]
_SHORT = replace(WORKLOADS["W1"], new=32)
_SPIN = "while True: pass"


def contention(models: BenchModels, peers: Peers, count: int, quietness: Quietness) -> list[dict[str, Any]]:
    """Measure W1's decode with 32 ids, alone and next to a busy process on the first CPU core."""
    wanted = {"Q4_0", "int4"}
    with ExitStack() as stack:
        found: list[Contestant] = [stack.enter_context(service()).install(models, "smol", _FORM)]
        found += [stack.enter_context(peer) for name, peer in peers.of("smol") if name in wanted]
        quiet = rounds(_SHORT, found, count, quietness, first=4000)
        with _competitor():
            beside = rounds(_SHORT, found, count, Quietness(0.0), first=4100)
    return [
        {
            "who": alone.who,
            "format": alone.form,
            "quiet": round(median(alone.values["decode"]), 1),
            "beside": round(median(crowded.values["decode"]), 1),
            "share": round(median(crowded.values["decode"]) / median(alone.values["decode"]), 3),
            "share_of_whole": round(median(crowded.values["output"]) / median(alone.values["output"]), 3),
        }
        for alone, crowded in zip(quiet, beside, strict=True)
    ]


@contextmanager
def _competitor() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        yield
    finally:
        process.kill()
        process.wait()


def fewer_threads(models: BenchModels, count: int, quietness: Quietness) -> list[dict[str, Any]]:
    """Measure W1 with a thread per CPU core, and with one thread less."""
    cores = psutil.cpu_count(logical=False) or 1
    if cores == 1:
        return []
    fewer = OurForm(Form(f"{_FORM.form.name}, {cores - 1} threads", 4), _FORM.source)
    with service() as servers:
        found: Sequence[Contestant] = [
            servers.install(models, "smol", _FORM, num_threads=cores),
            servers.install(models, "smol", fewer, num_threads=cores - 1),
        ]
        series = rounds(WORKLOADS["W1"], found, count, quietness, first=6000)
    return [
        {"threads": threads, **{metric: round(one.middle(metric), 1) for metric in ("decode", "ttft")}}
        for threads, one in zip((cores, cores - 1), series, strict=True)
    ]


def start_up(models: BenchModels, quietness: Quietness) -> dict[str, dict[str, float]]:
    """Measure the seconds until SmolLM2 is ready, uncached and from packed cache: the model, and the whole process."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            quietness.wait()
            seconds[name] = _started(models, folder)
    return seconds


def _started(models: BenchModels, cache: str) -> dict[str, float]:
    command = ["-m", "headrace_engine", "--listen", "127.0.0.1:0", "--model", f"smol={models.packaged}"]
    began = time.monotonic()
    with variable_set(CACHE_VARIABLE, cache), running(*command) as server:
        ready = server.wait_event("model_ready", 60)
        return {"model": ready["seconds"], "process": round(time.monotonic() - began, 2)}
