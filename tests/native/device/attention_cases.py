"""Attention over blocks on a device, and the same in float64."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import torch
from headrace_engine.native import Dtype, Kv, Native
from headrace_engine.native.abi import DecodeAttention, PrefillAttention
from native.buffers import Output, stream_of
from native.kv_pool import GAP, KvPool
from torch import Tensor

LIMIT = 4e-3
ROW_LIMIT = 6e-3
"""Of one row: where it attends to few keys, roundings do not average out."""
NOBODYS = 2**31 - 1
"""A block that no pool has: whoever reads it dies."""
FAR_OFF = 1 << 20
"""Tokens of a part that no sequence fills."""
MODELS = [(9, 3, 64), (2, 2, 64), (4, 2, 80), (3, 1, 96), (8, 1, 128), (16, 1, 64), (7, 1, 256), (11, 1, 80)]
"""Query heads, KV heads, entries of a head."""


@dataclass
class Case:
    """Sequences in shuffled blocks; what they have not stored is NaN, and their tables lead nowhere behind it.

    Attributes:
        sequences: rows of each sequence, and the tokens that it has stored, its rows included.
    """

    device: Native
    kv: Kv
    model: tuple[int, int, int]
    sequences: list[tuple[int, int]]
    block_size: int = 16
    window: int = 0
    soft_cap: float = 0.0
    gap: int = GAP
    sunk: bool = False

    def __post_init__(self) -> None:
        heads, kv_heads, dim = self.model
        self.max_blocks = max(1, *(-(-stored // self.block_size) for _, stored in self.sequences)) + 1
        count = len(self.sequences) * self.max_blocks
        where = self.device.device
        self.sinks = (3 * torch.randn(heads)).bfloat16().to(where)
        self.pool = KvPool(where, self.kv, kv_heads, dim, self.block_size, count, self.gap)
        self.pool.fill()
        self.tables = torch.randperm(count).view(len(self.sequences), self.max_blocks).int()
        self.table_rows = torch.randperm(len(self.sequences)).int() + len(self.sequences)
        rows = sum(length for length, _ in self.sequences)
        self.fused = torch.randn(rows, (heads + 2 * kv_heads) * dim).bfloat16()
        queries = self.fused[:, : heads * dim].unflatten(1, (heads, dim))
        queries.copy_(self.pool.rotation.gathered(queries))
        self.fused = self.fused.to(where)
        self.entries = self.pool.entries()
        for table, (_, stored) in zip(self.tables, self.sequences, strict=True):
            for position in range(stored, self.max_blocks * self.block_size):
                self.pool.forget(int(table[position // self.block_size]), position % self.block_size)
            table[-(-stored // self.block_size) :] = NOBODYS
        self.out = Output((rows, heads * dim), Dtype.BFLOAT16, where)

    def common(self) -> dict[str, Any]:
        """Fields that both structs have."""
        heads, _, dim = self.model
        where = self.device.device
        by_row = torch.full((2 * len(self.tables), self.max_blocks), NOBODYS, dtype=torch.int32)
        by_row[self.table_rows.long()] = self.tables
        self.kept = by_row.to(where)
        return {
            "q": self.fused.data_ptr(),
            "tables": self.kept.data_ptr(),
            "out": self.out.tensor.data_ptr(),
            "sinks": self.sinks.data_ptr() if self.sunk else None,
            "blocks": self.pool.struct,
            "q_stride": self.fused.shape[1],
            "sequences": len(self.sequences),
            "heads": heads,
            "max_blocks": self.max_blocks,
            "scale": dim**-0.5,
            "soft_cap": self.soft_cap,
        }

    def tasks(self, size: int) -> list[list[int]]:
        """Ranges of so many tokens, in any order."""
        tasks = []
        for number, (_, stored) in enumerate(self.sequences):
            lowest = max(0, stored - self.window) if self.window else 0
            bounds = [lowest, *range(lowest // 16 * 16 + size, stored, size), stored]
            ranges = list(itertools.pairwise(bounds))
            of_sequence = (number, int(self.table_rows[number]))
            tasks += [[*of_sequence, *each, part, len(ranges)] for part, each in enumerate(ranges)]
        return random.sample(tasks, len(tasks))

    def decode(self, size: int = FAR_OFF, multiprocessors: int = 3, parts: Tensor | None = None) -> Tensor:
        """One row a sequence, in parts of `size` tokens; the list of tasks is one of two."""
        heads, _, dim = self.model
        where = self.device.device
        tasks = self.tasks(size)
        most = max(task[5] for task in tasks)
        shape = (len(self.sequences), heads, most)
        parts = torch.full((*shape, dim), torch.nan, device=where) if parts is None else parts
        sums = torch.full((*shape, 2), torch.nan, device=where)
        arrived = torch.zeros(len(self.sequences) * heads, dtype=torch.int32, device=where)
        listed = torch.tensor([[NOBODYS] * 6, *tasks, [NOBODYS] * 6], dtype=torch.int32, device=where)
        found = torch.tensor([1, len(tasks)], dtype=torch.int32, device=where)
        args = DecodeAttention(
            **self.common(),
            tasks=listed.data_ptr(),
            list=found.data_ptr(),
            most_parts=most,
            multiprocessors=multiprocessors,
        )
        if most > 1:
            args.parts, args.part_sums, args.arrived = parts.data_ptr(), sums.data_ptr(), arrived.data_ptr()
        self.device.launch("decode_attention", args, stream_of(self.device))
        out = self.out.written()
        assert not arrived.any(), "the next launch finds other than zeros"
        return out

    def prefill(self, listed: slice = slice(None), more: int = 0) -> Tensor:
        """All rows of some sequences, which are all by default.

        Args:
            listed: which; the others' rows of the result are NaN.
            more: sequences and rows that the launch has room for besides.
        """
        first, end, _ = listed.indices(len(self.sequences))
        lengths = [length for length, _ in self.sequences]
        firsts = torch.tensor([0, *lengths]).cumsum(0).int().to(self.device.device)
        stored = torch.tensor([stored for _, stored in self.sequences]).int().to(self.device.device)
        rows = self.table_rows.to(self.device.device)
        found = torch.tensor([first, end - first], dtype=torch.int32, device=self.device.device)
        args = PrefillAttention(
            **self.common(),
            table_rows=rows.data_ptr(),
            firsts=firsts.data_ptr(),
            stored=stored.data_ptr(),
            list=found.data_ptr(),
            rows=sum(lengths[listed]) + more,
            window=self.window,
        )
        args.sequences = end - first + more
        self.device.launch("prefill_attention", args, stream_of(self.device))
        return self.out.written()

    def expected(self) -> Tensor:
        """The same in float64."""
        heads, _, dim = self.model
        queries = self.pool.rotation.rotate(self.fused[:, : heads * dim].cpu().view(-1, heads, dim))
        rows = queries.split([length for length, _ in self.sequences])
        return torch.cat([self._attend(*each) for each in zip(rows, self.tables, self.sequences, strict=True)])

    def _attend(self, q: Tensor, table: Tensor, sequence: tuple[int, int]) -> Tensor:
        heads, kv_heads, dim = self.model
        length, stored = sequence
        if not stored:
            return torch.zeros(length, heads * dim, dtype=torch.float64)
        both = self.entries[table[table != NOBODYS].long()].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :stored]
        k, v = both.repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("qhd,hkd->hqk", q, k) * dim**-0.5
        if self.soft_cap:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        at, key = torch.arange(stored - length, stored).unsqueeze(1), torch.arange(stored)
        hidden = (key > at) | ((key <= at - self.window) if self.window else key < 0)
        sinks = self.sinks.cpu().double() if self.sunk else torch.full((heads,), -torch.inf, dtype=torch.float64)
        every = torch.cat((scores.masked_fill(hidden, -torch.inf), sinks.view(-1, 1, 1).expand(-1, length, 1)), -1)
        weights = every.softmax(-1)[..., :-1]
        return torch.einsum("hqk,hkd->qhd", weights, v).flatten(1)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """All rows together differ by at most the limit, relative to their length, and none of them by far more."""
    error, length = (actual - expected).norm(dim=-1), expected.norm(dim=-1)
    assert error.norm() <= LIMIT * length.norm(), f"error {(error.norm() / length.norm()).item():.1e}"
    worst = (error / length.clamp_min(1e-30)).max().item()
    assert (error <= ROW_LIMIT * length).all(), f"largest error of a row {worst:.1e}"
