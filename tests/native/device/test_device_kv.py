"""Keys and values into blocks on a device, against the same in float64, and blocks from place to place."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.hadamard import hadamard
from headrace_engine.native import Code, Dtype, Kv, Native, NativeError
from headrace_engine.native.abi import AppendKv, CopyBlocks, KvBlocks
from native.buffers import Output, stream_of
from native.kv_pool import FAR, GAP, MOST, KvPool, kv_formats
from torch import Tensor

LIMIT = 4e-3
POSITIONS = 200
EPS = 1e-5
MODELS = [(9, 3, 64), (2, 2, 80), (3, 1, 96), (5, 1, 128), (2, 1, 256)]
"""Query heads, KV heads, entries of a head."""

formats = pytest.mark.parametrize("kv", kv_formats, ids=lambda kv: kv.name.lower())


@dataclass
class Case:
    """Tokens whose queries, keys and values are slices of one projection; the third of them is not stored."""

    device: Native
    kv: Kv
    model: tuple[int, int, int]
    rotary: float = 1.0
    normed: bool = False
    block_size: int = 16
    tokens: int = 7
    in_place: bool = False
    gap: int = GAP

    def __post_init__(self) -> None:
        heads, kv_heads, dim = self.model
        where, self.half = self.device.device, int(dim * self.rotary) // 4 * 2
        self.pool = KvPool(where, self.kv, kv_heads, dim, self.block_size, 4, self.gap)
        self.given = torch.randn(self.tokens, heads + 2 * kv_heads, dim).bfloat16()
        self.positions = torch.randint(0, POSITIONS, (self.tokens,)).int()
        self.slots = torch.randperm(4 * self.block_size)[: self.tokens].int()
        self.slots[2] = -1
        angles = torch.outer(torch.arange(POSITIONS), 1e4 ** (-torch.arange(self.half) / max(1, self.half)))
        self.cos, self.sin = angles.cos(), angles.sin()
        self.weights = [torch.rand(dim).add(0.5).bfloat16() for _ in range(2)]

    def run(self) -> Tensor:
        """The queries as attention takes them, float64 [tokens, heads, dim]; keys and values are in the pool."""
        heads, kv_heads, dim = self.model
        where = self.device.device
        fused = self.given.to(where).flatten(1).contiguous()
        place = [fused.data_ptr() + 2 * dim * first for first in (0, heads, heads + kv_heads)]
        tables = [tensor.to(where) for tensor in (self.cos, self.sin, self.positions, self.slots, *self.weights)]
        cos, sin, positions, slots, *weights = (tensor.data_ptr() for tensor in tables)
        out = Output((self.tokens, heads, dim), Dtype.BFLOAT16, where)
        q, q_stride = place[0], fused.shape[1]
        if self.in_place:
            out.tensor.copy_(self.given[:, :heads])
            q, q_stride = out.tensor.data_ptr(), heads * dim
        args = AppendKv(q=q, k=place[1], v=place[2], cos=cos, sin=sin, positions=positions, slots=slots)
        args.q_out, args.blocks, args.q_stride = out.tensor.data_ptr(), self.pool.struct, q_stride
        args.k_stride = args.v_stride = fused.shape[1]
        args.tokens, args.heads, args.rotary_dim, args.eps = self.tokens, heads, 2 * self.half, EPS
        if self.normed:
            args.q_norm, args.k_norm = weights
        self.device.launch("append_kv", args, stream_of(self.device))
        return out.written()

    def turned(self, first: int, count: int, weight: Tensor) -> Tensor:
        """These heads, normed and rotated, float64 [tokens, count, dim]."""
        x = self.given[:, first : first + count].double()
        if self.normed:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()
        cos, sin = (table[self.positions.long()].double().unsqueeze(1) for table in (self.cos, self.sin))
        a, b = x[..., : self.half], x[..., self.half : 2 * self.half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * self.half :]], dim=-1)

    def of_tokens(self, stored: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the stored tokens out of something of all rows: [tokens, kv_heads, ...]."""
        slots = self.slots[self.slots >= 0].long()
        rows = stored[slots // self.block_size, :, :, slots % self.block_size]
        return rows[:, 0], rows[:, 1]


def codes_of(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of rows of float32 numbers, step by step in float32."""
    x = rows.float().numpy()
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    step = (high - low) / np.float32(most)
    codes = np.minimum(np.rint((x - low) / step), np.float32(most))
    return torch.from_numpy(codes).long(), torch.from_numpy(np.concatenate([step, low], axis=-1))


@formats
@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("variant", [{}, {"normed": True}, {"rotary": 0.5, "block_size": 48}], ids=str)
def test_queries_and_keys_are_normed_and_turned(
    device: Native, kv: Kv, model: tuple[int, int, int], variant: dict[str, Any]
) -> None:
    case = Case(device, kv, model, **variant)
    queries = case.pool.rotation.rotate(case.run())
    heads, kv_heads, _ = model
    expected = case.turned(0, heads, case.weights[0])
    assert ((queries - expected).norm(dim=-1) <= LIMIT * expected.norm(dim=-1)).all()
    keys = case.turned(heads, kv_heads, case.weights[1])[case.slots >= 0]
    stored, _ = case.of_tokens(case.pool.entries())
    rotated = case.pool.rotation.rotate(keys)
    allowed = (
        keys.abs() * 2**-8 if kv is Kv.BFLOAT16 else (rotated.amax(-1) - rotated.amin(-1)).unsqueeze(-1) / MOST[kv] / 2
    )
    assert ((stored - keys).abs() <= allowed * 1.001 + 1e-5).all()


@formats
def test_t3_blocks_may_lie_beyond_two_gigabytes(device: Native, kv: Kv) -> None:
    near, far = (Case(device, kv, MODELS[0], rotary=0.0, tokens=40, gap=gap) for gap in (GAP, FAR))
    far.given, far.positions, far.slots = near.given, near.positions, near.slots
    assert torch.equal(near.run(), far.run())
    for mine, theirs in zip(near.of_tokens(near.pool.rows), far.of_tokens(far.pool.rows), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kv", [Kv.INT8, Kv.UINT4], ids=lambda kv: kv.name.lower())
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_codes_and_scales_are_exactly_those_of_the_formula(device: Native, kv: Kv, model: tuple[int, int, int]) -> None:
    """Of values, and of keys where nothing turns: they are rounded nowhere else."""
    case = Case(device, kv, model, rotary=0.0)
    case.run()
    heads, kv_heads, _ = model
    codes, scales = case.of_tokens(case.pool.codes()), case.of_tokens(case.pool.scales.cpu())
    for side, first in enumerate((heads, heads + kv_heads)):
        given = case.given[case.slots >= 0, first : first + kv_heads].float()
        expected = codes_of(hadamard(given) if kv is Kv.UINT4 else given, MOST[kv])
        assert torch.equal(codes[side], expected[0])
        assert torch.equal(scales[side], expected[1])


def test_numbers_are_stored_as_they_are(device: Native) -> None:
    case = Case(device, Kv.BFLOAT16, (4, 2, 64), rotary=0.0)
    queries = case.run()
    assert torch.equal(queries, case.given[:, :4].double())
    keys, values = case.of_tokens(case.pool.entries())
    assert torch.equal(keys, case.given[case.slots >= 0, 4:6].double())
    assert torch.equal(values, case.given[case.slots >= 0, 6:8].double())


@formats
def test_a_row_of_equal_entries_is_stored_exactly(device: Native, kv: Kv) -> None:
    """But for the last bits where heads are rotated: of what is one entry and zeros, one is read as low + 15 steps."""
    case = Case(device, kv, (2, 1, 64), rotary=0.0)
    case.given[:] = torch.randn(7, 1, 1).bfloat16()
    case.run()
    for stored in case.of_tokens(case.pool.entries()):
        expected = case.given[case.slots >= 0, :1].double().expand_as(stored)
        torch.testing.assert_close(stored, expected, rtol=1e-5 if kv is Kv.UINT4 else 0, atol=0)


@formats
def test_only_the_slots_of_the_tokens_are_written(device: Native, kv: Kv) -> None:
    case = Case(device, kv, (4, 2, 64), block_size=32)
    case.run()
    assert case.pool.untouched()
    free = torch.ones(4 * 32, dtype=torch.bool)
    free[case.slots[case.slots >= 0].long()] = False
    rows = case.pool.rows.cpu().permute(0, 3, 1, 2, 4).flatten(0, 1)
    assert (rows[free] == 0xFF).all()
    assert not (rows[~free] == 0xFF).all(-1).any()
    if kv is not Kv.BFLOAT16:
        assert case.pool.scales.cpu().permute(0, 3, 1, 2, 4).flatten(0, 1)[free].isnan().all()


def test_queries_may_be_turned_in_place(device: Native) -> None:
    case = Case(device, Kv.BFLOAT16, (4, 2, 64), in_place=True, normed=True)
    expected = case.turned(0, 4, case.weights[0])
    assert ((case.run() - expected).norm(dim=-1) <= LIMIT * expected.norm(dim=-1)).all()


def copy(device: Native, source: Tensor, target: Tensor, pairs: list[tuple[int, int]], size: int, **more: int) -> None:
    listed = torch.tensor(pairs, dtype=torch.int32).to(device.device)
    args = CopyBlocks(source=source.data_ptr(), target=target.data_ptr(), pairs=listed.data_ptr(), bytes=size)
    args.count, args.pieces = len(pairs), 1
    for name, value in more.items():
        setattr(args, name, value)
    device.launch("copy_blocks", args, stream_of(device))
    if device.device == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("size", [16, 4096 + 16, 1 << 17])
def test_blocks_are_copied_within_a_pool(device: Native, size: int, limit: int) -> None:
    pool = torch.randint(0, 256, (6, size + 32), dtype=torch.uint8, device=device.device)
    expected = pool.clone()
    expected[5, :size], expected[0, :size] = pool[1, :size], pool[4, :size]
    strides = dict.fromkeys(("source_stride", "target_stride"), size + 32)
    copy(device, pool, pool, [(1, 5), (4, 0)], size, **strides, limit=limit)
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_blocks_go_to_the_host_and_come_back(device: Native, limit: int) -> None:
    """The device has [layers, blocks], the host [blocks, layers], where a block of all layers lies together."""
    layers, count, size = 3, 5, 1040
    pool = torch.randint(0, 256, (layers, count, size), dtype=torch.uint8, device=device.device)
    before = pool.clone()
    pinned = torch.zeros(4, layers, size, dtype=torch.uint8)
    host = pinned.pin_memory() if device.device == "cuda" else pinned
    here = {"source_stride": size, "source_piece_stride": count * size}
    there = {"target_stride": layers * size, "target_piece_stride": size}
    copy(device, pool, host, [(4, 0), (2, 3)], size, pieces=layers, limit=limit, **here, **there)
    assert torch.equal(host[[0, 3]], before[:, [4, 2]].transpose(0, 1).cpu())
    assert not host[1:3].any()
    back = {"source_stride": layers * size, "source_piece_stride": size}
    copy(
        device, host, pool, [(0, 1), (3, 0)], size, pieces=layers, **back, target_stride=size,
        target_piece_stride=count * size,
    )  # fmt: skip
    before[:, [1, 0]] = before[:, [4, 2]]
    assert torch.equal(pool, before)


def test_blocks_beyond_two_gigabytes_are_copied(device: Native) -> None:
    """Of a pool of which nobody touches what lies between."""
    pool = torch.empty(2 * FAR + 32, dtype=torch.uint8, device=device.device)
    far = pool[2 * FAR :]
    far[:16], far[16:] = torch.arange(16, dtype=torch.uint8), 77
    near = torch.zeros(4, 16, dtype=torch.uint8, device=device.device)
    copy(device, pool, near, [(2, 1)], 16, source_stride=FAR, target_stride=16)
    assert torch.equal(near.cpu()[1], torch.arange(16, dtype=torch.uint8))
    copy(device, near, pool, [(0, 2)], 16, source_stride=16, target_stride=FAR)
    assert far.tolist() == [0] * 16 + [77] * 16


def test_more_pairs_than_a_grid_has_are_copied(device: Native) -> None:
    """65,535 blocks lie along a grid's last dimension."""
    count = 65_537
    source = torch.randint(0, 256, (count, 16), dtype=torch.uint8)
    here, there = source.to(device.device), torch.zeros_like(source).to(device.device)
    copy(device, here, there, [(i, i) for i in range(count)], 16, source_stride=16, target_stride=16)
    assert torch.equal(there.cpu(), source)


@pytest.mark.parametrize(
    ("kv", "expected"), [(Kv.BFLOAT16, 2 * 3 * 32 * 160), (Kv.INT8, 2 * 3 * 32 * 88), (Kv.UINT4, 2 * 3 * 32 * 48)]
)
def test_the_bytes_of_a_block_are_told(device: Native, kv: Kv, expected: int) -> None:
    bytes_of = device.handle.core_kv_block_bytes
    bytes_of.restype, bytes_of.argtypes = ctypes.c_int64, (ctypes.POINTER(KvBlocks),)
    blocks = KvBlocks(kv_heads=3, head_dim=80, block_size=32, kv=kv)
    assert bytes_of(ctypes.byref(blocks)) == expected
    assert KvPool("cpu", kv, 3, 80, 32, 1).block_bytes == expected
    for name, value in (("kv", Kv.FLOAT32), ("head_dim", 88), ("block_size", 8), ("kv_heads", 0)):
        wrong = KvBlocks(kv_heads=3, head_dim=80, block_size=32, kv=kv)
        setattr(wrong, name, value)
        assert bytes_of(ctypes.byref(wrong)) == 0


@pytest.mark.parametrize("op", ["append_kv", "copy_blocks"])
def test_nothing_to_do_is_no_work(device: Native, op: str) -> None:
    device.launch(op, {"append_kv": AppendKv, "copy_blocks": CopyBlocks}[op]())


def appending() -> AppendKv:
    """Right arguments whose addresses lead nowhere."""
    names = ("q", "k", "v", "q_norm", "k_norm", "cos", "sin", "positions", "slots", "q_out")
    args = AppendKv(**dict.fromkeys(names, 0x1000))
    args.blocks = KvPool("cpu", Kv.INT8, 2, 64, 16, 1).struct
    args.q_stride, args.k_stride, args.v_stride = 512, 512, 512
    args.tokens, args.heads, args.rotary_dim = 3, 4, 64
    return args


def copying() -> CopyBlocks:
    """Right arguments whose addresses lead nowhere."""
    strides = dict.fromkeys(("source_stride", "target_stride", "source_piece_stride", "target_piece_stride"), 64)
    return CopyBlocks(source=0x1000, target=0x2000, pairs=0x1000, bytes=64, count=1, pieces=2, **strides)


WRONG = [
    *(("append_kv", name, 0, Code.NULL_POINTER) for name in ("q", "k", "v", "q_out", "slots", "cos", "positions")),
    ("append_kv", "q", 0x1002, Code.MISALIGNED),
    ("append_kv", "q_norm", 0x1001, Code.MISALIGNED),
    ("append_kv", "q_stride", 255, Code.BAD_SHAPE),
    ("append_kv", "q_stride", 254, Code.BAD_SHAPE),
    ("append_kv", "k_stride", 129, Code.BAD_SHAPE),
    ("append_kv", "v_stride", 126, Code.BAD_SHAPE),
    ("append_kv", "tokens", -1, Code.BAD_COUNT),
    ("append_kv", "heads", 3, Code.BAD_SHAPE),
    ("append_kv", "rotary_dim", 66, Code.BAD_SHAPE),
    ("append_kv", "rotary_dim", 33, Code.BAD_SHAPE),
    ("append_kv", "eps", -1.0, Code.BAD_NUMBER),
    ("copy_blocks", "source", 0, Code.NULL_POINTER),
    ("copy_blocks", "target", 0x1008, Code.MISALIGNED),
    ("copy_blocks", "pairs", 0x1002, Code.MISALIGNED),
    ("copy_blocks", "bytes", 0, Code.BAD_SHAPE),
    ("copy_blocks", "target_stride", 8, Code.BAD_SHAPE),
    ("copy_blocks", "source_piece_stride", -16, Code.BAD_SHAPE),
    ("copy_blocks", "count", -1, Code.BAD_COUNT),
    ("copy_blocks", "pieces", 0, Code.BAD_SHAPE),
    ("copy_blocks", "limit", -1, Code.BAD_COUNT),
]


@pytest.mark.parametrize(("op", "name", "value", "code"), WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(device: Native, op: str, name: str, value: Any, code: Code) -> None:
    args = appending() if op == "append_kv" else copying()
    setattr(args, name, value)
    with pytest.raises(NativeError) as caught:
        device.launch(op, args)
    assert (caught.value.code, caught.value.field) == (code, name)
