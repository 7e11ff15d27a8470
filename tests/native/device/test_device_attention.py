"""Attention over blocks on a device, one row a sequence and many, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from headrace_engine.native import Code, Dtype, Kv, Native, NativeError
from headrace_engine.native.abi import DecodeAttention, PrefillAttention
from native.buffers import Output, stream_of
from native.kv_pool import FAR, GAP, KvPool, kv_formats
from torch import Tensor

LIMIT = 4e-3
ROW_LIMIT = 6e-3
"""Of one row: where it attends to few keys, roundings do not average out."""
NOBODYS = 2**31 - 1
"""A block that no pool has: whoever reads it dies."""
MODELS = [(9, 3, 64), (2, 2, 64), (4, 2, 80), (3, 1, 96), (8, 1, 128), (16, 1, 64), (7, 1, 256), (11, 1, 80)]
"""Query heads, KV heads, entries of a head."""

formats = pytest.mark.parametrize("kv", kv_formats, ids=lambda kv: kv.name.lower())
models = pytest.mark.parametrize("model", MODELS, ids=str)


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
        self.kept = [self.tables.to(where), torch.tensor([stored for _, stored in self.sequences]).int().to(where)]
        tables, stored = (tensor.data_ptr() for tensor in self.kept)
        return {
            "q": self.fused.data_ptr(),
            "tables": tables,
            "stored": stored,
            "out": self.out.tensor.data_ptr(),
            "sinks": self.sinks.data_ptr() if self.sunk else None,
            "blocks": self.pool.struct,
            "q_stride": self.fused.shape[1],
            "sequences": len(self.sequences),
            "heads": heads,
            "max_blocks": self.max_blocks,
            "window": self.window,
            "scale": dim**-0.5,
            "soft_cap": self.soft_cap,
        }

    def decode(self, splits: int = 1, split_size: int = 0) -> Tensor:
        """One row a sequence."""
        heads, _, dim = self.model
        shape = (len(self.sequences), heads, splits)
        parts = torch.full((*shape, dim), torch.nan, device=self.device.device)
        sums = torch.full((*shape, 2), torch.nan, device=self.device.device)
        args = DecodeAttention(**self.common(), splits=splits, split_size=split_size)
        if splits > 1:
            args.parts, args.part_sums = parts.data_ptr(), sums.data_ptr()
        self.device.launch("decode_attention", args, stream_of(self.device))
        return self.out.written()

    def prefill(self) -> Tensor:
        """All rows."""
        lengths = [length for length, _ in self.sequences]
        firsts = torch.tensor([0, *lengths]).cumsum(0).int().to(self.device.device)
        args = PrefillAttention(**self.common(), firsts=firsts.data_ptr(), longest=max(lengths))
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


@formats
@models
def test_a_row_attends_to_all_that_its_sequence_stores(device: Native, kv: Kv, model: tuple[int, int, int]) -> None:
    case = Case(device, kv, model, [(1, 1), (1, 70), (1, 33)])
    assert_close(case.decode(), case.expected())


VARIANTS = [{"window": 20}, {"soft_cap": 3.0}, {"block_size": 48, "window": 33}, {"sunk": True, "window": 60}]


@formats
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_decode_knows_windows_caps_and_longer_blocks(device: Native, kv: Kv, variant: dict[str, Any]) -> None:
    case = Case(device, kv, (6, 2, 80), [(1, 100), (1, 5), (1, 49)], **variant)
    assert_close(case.decode(splits=2), case.expected())


@formats
@pytest.mark.parametrize(("splits", "split_size"), [(3, 0), (16, 0), (2, 32), (9, 16)])
def test_parts_are_joined_however_many_there_are(device: Native, kv: Kv, splits: int, split_size: int) -> None:
    case = Case(device, kv, (4, 2, 64), [(1, 150), (1, 17), (1, 3)])
    assert_close(case.decode(splits, split_size), case.expected())


@pytest.mark.parametrize("splits", [1, 4])
def test_a_sequence_that_stores_nothing_gives_zeros(device: Native, splits: int) -> None:
    case = Case(device, Kv.BFLOAT16, (4, 2, 64), [(1, 0), (1, 20), (1, 0)])
    assert_close(case.decode(splits), case.expected())


@formats
@pytest.mark.parametrize("splits", [1, 3])
def test_sinks_take_part_in_joined_parts(device: Native, kv: Kv, splits: int) -> None:
    case = Case(device, kv, (4, 2, 64), [(1, 150), (1, 0), (1, 3)], sunk=True)
    assert_close(case.decode(splits), case.expected())


@formats
def test_a_row_has_the_same_bits_alone_and_among_others(device: Native, kv: Kv) -> None:
    case = Case(device, kv, (4, 2, 64), [(1, 90), (1, 40)])
    together = case.decode(splits=3)[1]
    case.fused, case.tables, case.sequences = case.fused[1:], case.tables[1:], case.sequences[1:]
    case.out = Output((1, 256), Dtype.BFLOAT16, device.device)
    assert torch.equal(case.decode(splits=3)[0], together)


@formats
@models
def test_many_rows_attend_to_what_comes_before_them(device: Native, kv: Kv, model: tuple[int, int, int]) -> None:
    heads, kv_heads, _ = model
    rows = 100 * kv_heads // heads  # two tiles
    case = Case(device, kv, model, [(3, 3), (rows, rows + 21)])
    assert_close(case.prefill(), case.expected())


@formats
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_prefill_knows_windows_caps_and_longer_blocks(device: Native, kv: Kv, variant: dict[str, Any]) -> None:
    case = Case(device, kv, (4, 2, 80), [(1, 130), (40, 40), (35, 150)], **variant)
    assert_close(case.prefill(), case.expected())


@formats
def test_a_row_has_the_same_bits_in_a_chunk_alone(device: Native, kv: Kv) -> None:
    """A chunk that begins at a tile's first row leaves the tiles as they were."""
    case = Case(device, kv, (2, 2, 64), [(100, 100)])
    whole = case.prefill()[64:]
    case.fused, case.sequences = case.fused[64:], [(36, 100)]
    case.out = Output((36, 128), Dtype.BFLOAT16, device.device)
    assert torch.equal(case.prefill(), whole)


@formats
def test_t3_blocks_may_lie_beyond_two_gigabytes(device: Native, kv: Kv) -> None:
    case = Case(device, kv, (2, 1, 64), [(1, 40), (1, 3)], gap=FAR)
    assert_close(case.decode(), case.expected())
    case = Case(device, kv, (2, 1, 64), [(20, 40)], gap=FAR)
    assert_close(case.prefill(), case.expected())


OPS = {"decode_attention": DecodeAttention, "prefill_attention": PrefillAttention}


def arguments(op: str) -> Any:
    """Arguments of a right shape, whose addresses lead nowhere."""
    pool = KvPool("cpu", Kv.BFLOAT16, 2, 64, 16, 1)
    args: Any = OPS[op]()
    for field_name in ("q", "tables", "stored", "out", "parts", "part_sums", "firsts"):
        if hasattr(args, field_name):
            setattr(args, field_name, 0x1000)
    args.blocks = pool.struct
    args.blocks.data, args.blocks.stride = 0x1000, 8192
    args.q_stride, args.sequences, args.heads, args.max_blocks, args.scale = 256, 2, 4, 3, 0.125
    if op == "decode_attention":
        args.splits = 2
    else:
        args.longest = 5
    return args


@pytest.mark.parametrize("op", OPS)
def test_no_sequences_are_no_work(device: Native, op: str) -> None:
    device.launch(op, OPS[op]())


WRONG = [
    ("q", 0, Code.NULL_POINTER),
    ("q", 0x1004, Code.MISALIGNED),
    ("out", 0, Code.NULL_POINTER),
    ("tables", 0, Code.NULL_POINTER),
    ("stored", 0x1001, Code.MISALIGNED),
    ("sinks", 0x1001, Code.MISALIGNED),
    ("q_stride", 255, Code.BAD_SHAPE),
    ("q_stride", 260, Code.BAD_SHAPE),
    ("sequences", -1, Code.BAD_COUNT),
    ("sequences", 65536, Code.BAD_SHAPE),
    ("heads", 3, Code.BAD_SHAPE),
    ("max_blocks", 0, Code.BAD_EXTENT),
    ("window", -1, Code.BAD_COUNT),
    ("scale", float("nan"), Code.BAD_NUMBER),
    ("soft_cap", -1.0, Code.BAD_NUMBER),
    ("blocks.stride", 8192 + 8, Code.BAD_SHAPE),
    ("blocks.stride", 4096, Code.BAD_SHAPE),
    ("blocks.count", 0, Code.BAD_EXTENT),
    ("blocks.kv_heads", 0, Code.BAD_SHAPE),
    ("blocks.head_dim", 72, Code.BAD_SHAPE),
    ("blocks.block_size", 24, Code.BAD_SHAPE),
    ("blocks.kv", Kv.FLOAT32, Code.UNKNOWN_DTYPE),
]
ONLY_DECODE = [
    ("splits", 0, Code.BAD_SHAPE),
    ("split_size", 24, Code.BAD_SHAPE),
    ("parts", 0, Code.NULL_POINTER),
    ("part_sums", 0, Code.NULL_POINTER),
]
ONLY_PREFILL = [("firsts", 0, Code.NULL_POINTER), ("longest", -1, Code.BAD_COUNT)]
CASES = [("decode_attention", *wrong) for wrong in WRONG + ONLY_DECODE] + [
    ("prefill_attention", *wrong) for wrong in WRONG + ONLY_PREFILL
]


@pytest.mark.parametrize(("op", "name", "value", "code"), CASES)
def test_a_wrong_argument_is_an_error_that_names_it(device: Native, op: str, name: str, value: Any, code: Code) -> None:
    """No buffer is touched: these addresses lead nowhere."""
    args = arguments(op)
    owner, _, last = name.rpartition(".")
    setattr(args.blocks if owner else args, last, value)
    with pytest.raises(NativeError) as caught:
        device.launch(op, args)
    assert (caught.value.code, caught.value.field) == (code, name)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("address", "code"), [(0, Code.NULL_POINTER), (0x1008, Code.MISALIGNED)])
def test_wrong_blocks_are_an_error_that_names_them(device: Native, op: str, address: int, code: Code) -> None:
    args = arguments(op)
    args.blocks.data = address
    with pytest.raises(NativeError) as caught:
        device.launch(op, args)
    assert (caught.value.code, caught.value.field) == (code, "blocks")
