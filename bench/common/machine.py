"""The machine's limits, measured in the same run as the results that are compared with them."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy
from grpc_health.v1 import health_pb2, health_pb2_grpc

_COPIES, _COPY_BYTES = 7, 256 << 20
_ROUND_TRIPS = 500
_LOOPS = 2_000_000
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Limits:
    """Limits of the machine.

    Attributes:
        load: load average of the last minute, at the start of the measurement.
        copy_gb_s: bytes that a copy reads and writes, in 10^9 a second; the best of a few.
        python_ns: nanoseconds of one round of an empty loop in Python.
        round_trip_us: microseconds of a call to a server of ours over loopback that does nothing, median.
    """

    cpu: str
    cores: int
    load: float
    copy_gb_s: float
    python_ns: float
    round_trip_us: float


def measure(address: str, load: float) -> Limits:
    """Measure the machine's limits; `address` is that of a server with standard health."""
    return Limits(cpu_name(), len(os.sched_getaffinity(0)), load, _copy(), _python(), _round_trip(address))


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and its threads so far, in seconds, to a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def cpu_name() -> str:
    """Return the name of the machine's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _copy() -> float:
    source = numpy.ones(_COPY_BYTES, dtype=numpy.uint8)
    target = numpy.zeros_like(source)
    times = []
    for _ in range(_COPIES):
        began = time.perf_counter()
        numpy.copyto(target, source)
        times.append(time.perf_counter() - began)
    return 2 * _COPY_BYTES / min(times) / 1e9


def _python() -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(_LOOPS):
            pass
        times.append(time.perf_counter() - began)
    return min(times) / _LOOPS * 1e9


def _round_trip(address: str) -> float:
    times = []
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for _ in range(_ROUND_TRIPS):
            began = time.perf_counter()
            check(health_pb2.HealthCheckRequest(), timeout=10)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6
