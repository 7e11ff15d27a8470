"""Rates of swapping blocks of keys and values between a device and host memory."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

import torch
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.host_blocks import HostBlocks
from headrace_engine.backends.cuda.device.pool import KvPool, bytes_a_block, kv_blocks
from headrace_engine.core.runner import BlockCopies
from headrace_engine.models.spec import DecoderSpec

from bench.gpu.parts.expected import Expected
from bench.gpu.shapes import BLOCK_SIZE, NUMBERS

_BUS, _BUS_SHARE = 63.0, 0.8
"""GB/s of PCIe 5 with 16 lanes, and the predicted fraction."""
_RUNS = 5


def expected() -> Mapping[str, Expected]:
    """Return the expectations, by the names of `copying`."""
    bus = Expected(_BUS, _BUS * _BUS_SHARE)
    return dict.fromkeys(("blocks out GB/s", "blocks in GB/s", "one piece out GB/s", "one piece in GB/s"), bus)


def copying(spec: DecoderSpec, device: Device, blocks: int) -> Mapping[str, float]:
    """Measure copies of scattered blocks by the backend's call, and of as many contiguous bytes by torch's copy."""
    shape = kv_blocks(spec, BLOCK_SIZE, NUMBERS.kv)
    pool = KvPool(shape, bytes_a_block(device.native, shape), spec.num_layers, 2 * blocks, device.torch)
    tier = HostBlocks(device, pool, blocks)
    places = random.Random(1).sample(range(2 * blocks), blocks)
    out = BlockCopies(to_host=list(zip(places, range(blocks), strict=True)))
    back = BlockCopies(to_pool=list(zip(range(blocks), places, strict=True)))
    size = blocks * spec.num_layers * bytes_a_block(device.native, shape)
    here = torch.empty(size, dtype=torch.uint8, device=device.torch)
    there = device.pinned(size)

    def moved(copies: BlockCopies) -> None:
        tier.copy(copies)
        tier.wait()

    works: dict[str, Callable[[], object]] = {
        "blocks out": lambda: moved(out),
        "blocks in": lambda: moved(back),
        "one piece out": lambda: there.copy_(here, non_blocking=True),
        "one piece in": lambda: here.copy_(there, non_blocking=True),
    }
    return {f"{name} GB/s": size / 1e9 / _seconds(device, work) for name, work in works.items()}


def _seconds(device: Device, work: Callable[[], object]) -> float:
    """Return the seconds of the best of a few runs, not counting the first."""
    times = []
    for _ in range(1 + _RUNS):
        device.mark().wait()
        began = time.perf_counter()
        work()
        device.mark().wait()
        times.append(time.perf_counter() - began)
    return min(times[1:])
