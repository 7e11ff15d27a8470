"""Seconds of work on a device, and the limits of the device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from headrace_engine.backends.cuda.device.device import Device


def seconds(device: Device, work: Callable[[], object], repeats: int) -> float:
    """Return the seconds of one call: the best of a few replays of a graph of several."""
    work()
    graph, _ = device.capture(lambda: [work() for _ in range(repeats)])
    times = []
    for _ in range(4):
        device.mark().wait()
        began = time.perf_counter()
        graph.replay()
        device.mark().wait()
        times.append(time.perf_counter() - began)
    return min(times[1:]) / repeats


def limits(device: Device, values: int, side: int, repeats: int) -> tuple[float, float]:
    """Measure bytes per second of a copy, and operations per second of a product of two square bfloat16 matrices.

    Args:
        values: number of bfloat16 values copied.
        side: side of the matrices.
    """
    source = torch.randn(values, dtype=torch.bfloat16, device=device.torch)
    target = torch.empty_like(source)
    one = torch.randn(side, side, dtype=torch.bfloat16, device=device.torch)
    other, out = torch.randn_like(one), torch.empty_like(one)
    copied = seconds(device, lambda: target.copy_(source), repeats)
    multiplied = seconds(device, lambda: torch.mm(one, other, out=out), repeats)
    return 2 * source.nbytes / copied, 2 * side**3 / multiplied
