"""Block tables on the simulated device: they stay there, and steps send what changed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.cuda.device.tables import UNIT, BlockTables
from support.sim.device import SimDevice

pytestmark = pytest.mark.usefixtures("simulator")

Table = tuple[list[int], int]


class Sent(BlockTables):
    """Tables that are sent at once, as steps do."""

    def step(self, tables: list[Table]) -> int:
        """Place the tables of a step, check them on the device, and return how many units were sent."""
        rows, numbers = self.place(tables)
        assert len({id(blocks) for blocks, _ in tables}) == len(set(rows))
        if numbers:
            pairs = np.stack((np.arange(len(numbers)), numbers), 1).astype(np.int32)
            self.write(torch.from_numpy(self.units(numbers).copy()), torch.from_numpy(pairs))
        for row, (blocks, used) in zip(rows, tables, strict=True):
            assert self.here[row, :used].tolist() == blocks[:used]
        return len(numbers)


def tables_of(rows: int, blocks: int = 30) -> Any:
    return Sent(SimDevice(), rows, blocks)


def test_a_table_is_sent_once_and_then_its_new_blocks() -> None:
    tables, blocks = tables_of(3), list(range(40, 50))
    assert tables.step([(blocks, 10)]) == 3
    assert tables.step([(blocks, 10)]) == 0
    blocks += [7, 8, 9]
    assert tables.step([(blocks, 12)]) == 1, "entries 10 and 11 lie in one unit"
    assert tables.step([(blocks, 13)]) == 1


def test_sequences_come_go_and_change_their_order() -> None:
    """Batches of at most as many as there is room for; equal lists are not the same list."""
    rng = random.Random(random.getrandbits(32))
    tables, alive = tables_of(5), [[number] for number in range(9)]
    for _ in range(200):
        chosen = rng.sample(alive, rng.randrange(1, 6))
        for blocks in chosen:
            blocks += rng.choices(range(1000), k=rng.randrange(min(4, 31 - len(blocks))))
        tables.step([(blocks, rng.randrange(1, len(blocks) + 1)) for blocks in chosen])
        if rng.random() < 0.3:
            alive[rng.randrange(9)] = [rng.randrange(1000)]


def test_those_of_the_step_keep_their_rows_when_another_comes() -> None:
    tables, three = tables_of(3), [[number] * 8 for number in range(3)]
    tables.step([(blocks, 8) for blocks in three])
    other = [9] * 8
    assert tables.step([(other, 8), (three[1], 8), (three[2], 8)]) == 8 // UNIT
    assert tables.step([(three[1], 8), (three[2], 8), (other, 8)]) == 0


def test_a_table_twice_in_a_step_has_one_row() -> None:
    tables, blocks = tables_of(1), [3, 4, 5]
    assert tables.step([(blocks, 2), (blocks, 3)]) == 2
    assert tables.step([(blocks, 3), (blocks, 3)]) == 0
