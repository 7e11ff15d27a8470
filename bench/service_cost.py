"""Where the time of one request goes, how threads share cores with others, and how long a start takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import psutil
from bench_models import BenchModels
from contestants import Contestant, Form
from headrace import Client
from ours import FORMS, Headrace, OurForm, Service, ask, service
from peers import Peers
from quietness import Quietness
from rounds import rounds
from servers import core_of, running
from whole_steps import alone, runner
from workloads import WORKLOADS

_FORM = FORMS["smol"][0]
_SHORT = replace(WORKLOADS["W1"], new=32)
_SPIN = "while True: pass"
_PROCESSES = ("core", "engine", "gateway", "client")


def split(models: BenchModels, count: int, quietness: Quietness) -> dict[str, Any]:
    """Milliseconds of an id of W1: the runner alone, in process, from the engine, and through the gateway.

    Also the CPU microseconds of an id in each process, on the way through the gateway.
    """
    workload = WORKLOADS["W1"]
    with ExitStack() as stack:
        loaded = stack.enter_context(runner(models, "smol", _FORM))
        servers = stack.enter_context(service())
        ours = servers.install(models, "smol", _FORM)
        inside = stack.enter_context(_in_process(models))
        direct = stack.enter_context(Client(servers.engine.address))
        through = _through(servers, ours)

        def of_client(client: Client) -> Callable[[list[int]], float]:
            return lambda prompt: _decode(client, prompt, workload.new)

        ways: dict[str, Callable[[list[int]], float]] = {
            "core": lambda prompt: alone(loaded, prompt, workload.new),
            "in process": of_client(inside),
            "engine": of_client(direct),
            "gateway": of_client(servers.client),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        cpu: list[dict[str, float]] = []
        for number in range(-1, count):
            for name, way in ways.items():
                quietness.wait()
                before = through()
                rate = way(workload.prompts(3000 + number)[0])
                if number >= 0:
                    found[name].append(1e3 / rate)
                    if name == "gateway":
                        cpu.append({key: value - before[key] for key, value in through().items()})
    return {
        "format": _FORM.form.name,
        "ms": {name: round(median(values), 3) for name, values in found.items()},
        "cpu_us": {name: round(median(one[name] for one in cpu) / workload.new * 1e6) for name in _PROCESSES},
    }


def _decode(client: Client, prompt: list[int], new: int) -> float:
    (arrivals,) = ask(client, _FORM.model_name, [prompt], new).arrivals
    return (new - arrivals[0][1]) / (arrivals[-1][0] - arrivals[0][0])


@contextmanager
def _in_process(models: BenchModels) -> Iterator[Client]:
    with Client("inprocess:") as client:
        fields: dict[str, Any] = {"max_batch": 16, "max_length": 704, "enable_prefix_cache": False}
        client.install_model(_FORM.model_name, path=str(models.packaged), **fields)
        client.start_model(_FORM.model_name)
        yield client


def _through(servers: Service, ours: Headrace) -> Callable[[], dict[str, float]]:
    """CPU seconds so far of each process on the way."""
    processes = {
        "core": core_of(servers.engine),
        "engine": psutil.Process(servers.engine.process.pid),
        "gateway": psutil.Process(servers.gateway.process.pid),
        "client": psutil.Process(),
    }
    return lambda: {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def contention(models: BenchModels, peers: Peers, count: int, quietness: Quietness) -> list[dict[str, Any]]:
    """W1's decode with 32 ids, alone and beside a process that never rests, bound to the first core."""
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
    """W1 with all cores, and with one thread less."""
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
    """Seconds until SmolLM2 is ready, nothing cached, then from packed cache: the model, and the whole process."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            quietness.wait()
            seconds[name] = _started(models, folder)
    return seconds


def _started(models: BenchModels, cache: str) -> dict[str, float]:
    command = ["-m", "headrace_engine", "--listen", "127.0.0.1:0", "--model", f"smol={models.packaged}"]
    before = os.environ.get("HEADRACE_CACHE")
    os.environ["HEADRACE_CACHE"] = cache
    began = time.monotonic()
    try:
        with running(*command) as server:
            ready = server.wait_event("model_ready", 60)
            return {"model": ready["seconds"], "process": round(time.monotonic() - began, 2)}
    finally:
        del os.environ["HEADRACE_CACHE"]
        if before is not None:
            os.environ["HEADRACE_CACHE"] = before
