"""Work beside other work on a device: copies to host memory and back, and steps that two threads capture and replay."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from headrace_engine.backends.cuda.device import host_blocks
from headrace_engine.backends.cuda.device.device import CudaDevice, Device, Mark
from headrace_engine.backends.cuda.device.host_blocks import HostBlocks
from headrace_engine.backends.cuda.device.pool import KvPool, bytes_a_block, kv_blocks
from headrace_engine.core.runner import BlockCopies
from headrace_engine.native import Code, Dtype, Kv, Native, NativeError
from headrace_engine.native.abi import GatherRows
from support.sim.device import SimDevice
from torch import Tensor

from bench.gpu.shapes import BLOCK_SIZE, TINY

BLOCKS, HOST_BLOCKS, ROUNDS = 12, 6, 40
LIMIT_S = 120.0


def opened(native: Native) -> Device:
    return CudaDevice(0) if torch.device(native.device).type == "cuda" else SimDevice()


class Tier:
    """A pool whose blocks are filled with numbers, its host tier, and what both should hold."""

    def __init__(self, device: Device) -> None:
        shape = kv_blocks(TINY, BLOCK_SIZE, Kv.INT8)
        self.pool = KvPool(shape, bytes_a_block(device.native, shape), TINY.num_layers, BLOCKS, device.torch)
        self.host = HostBlocks(device, self.pool, HOST_BLOCKS)
        self.held = [0] * BLOCKS
        self.away = [0] * HOST_BLOCKS

    def write(self, block: int, number: int) -> None:
        """What a step does that computes a block."""
        self.host.settle([block])
        self.pool.blocks[block].fill_(number)
        self.held[block] = number

    def copy(self, copies: BlockCopies) -> None:
        self.host.copy(copies)
        for block, place in copies.to_host:
            self.away[place] = self.held[block]
        for place, block in copies.to_pool:
            self.held[block] = self.away[place]

    def check(self, block: int) -> None:
        """What a step does that reads a block."""
        self.host.settle([block])
        assert bool((self.pool.blocks[block] == self.held[block]).all()), f"block {block} is not {self.held[block]}"


def test_copies_beside_steps_are_those_in_their_place(device: Native) -> None:
    """Blocks are overwritten and read as soon as their copies are enqueued."""
    tier = Tier(opened(device))
    for number in range(ROUNDS):
        for block in random.sample(range(BLOCKS), 3):
            tier.write(block, 1 + (5 * number + block) % 250)
        leaving = list(zip(random.sample(range(BLOCKS), 2), random.sample(range(HOST_BLOCKS), 2), strict=True))
        coming = list(zip(random.sample(range(HOST_BLOCKS), 2), random.sample(range(BLOCKS), 2), strict=True))
        tier.copy(BlockCopies(leaving, random.choice(((), coming))))
        tier.check(random.randrange(BLOCKS))
    for block in range(BLOCKS):
        tier.check(block)


@pytest.mark.usefixtures("simulator")
def test_a_step_waits_for_copies_of_its_own_blocks_alone() -> None:
    """On the simulated device, which puts copies off until somebody waits for them."""
    simulated = SimDevice()
    tier = Tier(simulated)
    tier.write(3, 7)
    tier.copy(BlockCopies(to_host=[(3, 0)]))
    tier.copy(BlockCopies(to_host=[(4, 1)]))
    tier.check(5)
    assert len(simulated._beside) == 2 * 2, "copies, and their ends"
    tier.write(3, 8)
    assert len(simulated._beside) == 2
    tier.host.wait()
    assert not simulated._beside
    tier.copy(BlockCopies(to_pool=[(0, 5)]))
    tier.check(5)


def gathered(native: Native, start: Barrier, seed: int) -> list[bool]:
    """Capture a step again and again, and replay it with other ids; return which replays were right."""
    device, generator = opened(native), torch.Generator().manual_seed(seed)
    rows = torch.randn(50, 64, generator=generator).bfloat16()
    table, ids = rows.to(device.torch), torch.zeros(8, dtype=torch.int32, device=device.torch)

    def work() -> Tensor:
        out = torch.empty(8, 64, dtype=torch.bfloat16, device=device.torch)
        places = {"table": table.data_ptr(), "ids": ids.data_ptr(), "out": out.data_ptr()}
        args = GatherRows(**places, rows=8, width=64, count=50, dtype=Dtype.BFLOAT16)
        device.launch("gather_rows", args)
        return out + out

    work()
    start.wait(LIMIT_S)
    right = []
    for _ in range(ROUNDS):
        graph, out = device.capture(work)
        chosen = torch.randint(50, (8,), generator=generator)
        ids.copy_(chosen)
        kept = [torch.empty(1 << 20, device=device.torch) for _ in range(3)]
        graph.replay()
        right.append(torch.equal(out.cpu(), 2 * rows[chosen]))
        del kept
    return right


def test_threads_capture_and_replay_beside_each_other(device: Native) -> None:
    """Neither allocations of one void captures of the other, nor do their replays meet."""
    start = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(gathered, device, start, seed) for seed in (1, 2)]
        assert [all(run.result()) for run in runs] == [True, True]


@pytest.mark.usefixtures("simulator")
def test_a_refused_copy_leaves_none_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies before it in the same call may be under way; their blocks are known, and so is their end."""
    simulated = SimDevice()
    tier = Tier(simulated)
    beside, refused = simulated.beside, NativeError("refused", code=Code.BAD_COUNT)

    def at_once(work: Callable[[], object]) -> Mark:
        if work is not host_blocks._nothing:
            raise refused
        return beside(work)

    monkeypatch.setattr(simulated, "beside", at_once)
    with pytest.raises(NativeError):
        tier.host.copy(BlockCopies(to_host=[(3, 0)]))
    assert len(simulated._beside) == 1
    tier.host.settle([3])
    assert not simulated._beside
