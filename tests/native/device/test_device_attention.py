"""Attention over blocks on a device, one row a sequence and many, against float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from headrace_engine.native import Code, Dtype, Kv, Native, NativeError
from headrace_engine.native.abi import DecodeAttention, PrefillAttention
from native.buffers import Output
from native.device.attention_cases import FAR_OFF, MODELS, Case, assert_close
from native.kv_pool import FAR, KvPool, kv_formats

formats = pytest.mark.parametrize("kv", kv_formats, ids=lambda kv: kv.name.lower())
models = pytest.mark.parametrize("model", MODELS, ids=str)


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
    assert_close(case.decode(64), case.expected())


@formats
@pytest.mark.parametrize("size", [16, 64, 160])
@pytest.mark.parametrize("multiprocessors", [1, 40])
def test_parts_are_joined_however_many_there_are(device: Native, kv: Kv, size: int, multiprocessors: int) -> None:
    case = Case(device, kv, (4, 2, 64), [(1, 150), (1, 17), (1, 3)])
    assert_close(case.decode(size, multiprocessors), case.expected())


@pytest.mark.parametrize("size", [FAR_OFF, 16])
def test_a_sequence_that_stores_nothing_gives_zeros(device: Native, size: int) -> None:
    case = Case(device, Kv.BFLOAT16, (4, 2, 64), [(1, 0), (1, 20), (1, 0)])
    assert_close(case.decode(size), case.expected())


@formats
@pytest.mark.parametrize("size", [FAR_OFF, 48])
def test_sinks_take_part_in_joined_parts(device: Native, kv: Kv, size: int) -> None:
    case = Case(device, kv, (4, 2, 64), [(1, 150), (1, 0), (1, 3)], sunk=True)
    assert_close(case.decode(size), case.expected())


@formats
def test_a_row_has_the_same_bits_alone_and_among_others(device: Native, kv: Kv) -> None:
    case = Case(device, kv, (4, 2, 64), [(1, 90), (1, 40)])
    together = case.decode(32)[1]
    case.fused, case.tables, case.sequences = case.fused[1:], case.tables[1:], case.sequences[1:]
    case.table_rows = case.table_rows[1:] % 2
    case.out = Output((1, 256), Dtype.BFLOAT16, device.device)
    assert torch.equal(case.decode(32, multiprocessors=1)[0], together)


@formats
@models
def test_random_lengths_in_parts_of_any_size(device: Native, kv: Kv, model: tuple[int, int, int]) -> None:
    lengths = [random.choice((0, 1, 15, 16, 17, 31, 200, random.randrange(1, 120))) for _ in range(6)]
    case = Case(device, kv, model, [(1, length) for length in lengths], window=random.choice((0, 0, 33)))
    assert_close(case.decode(16 * random.randrange(1, 5), random.randrange(1, 9)), case.expected())


def test_only_parts_of_several_are_written(device: Native) -> None:
    """Room for parts is for the longest; the others leave it alone."""
    case = Case(device, Kv.BFLOAT16, (4, 2, 64), [(1, 10), (1, 100), (1, 64)])
    parts = torch.full((3, 4, 4, 64), torch.nan, device=device.device)
    case.decode(32, parts=parts)
    written = parts[:, 0, :, 0].isnan().logical_not().sum(1)
    assert written.tolist() == [0, 4, 2]


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


@formats
@pytest.mark.parametrize("more", [0, 7, 300])
def test_prefill_takes_the_sequences_of_its_list(device: Native, kv: Kv, more: int) -> None:
    """Launches that are captured have room for more than there is; rows of other sequences are left alone."""
    case = Case(device, kv, (4, 2, 64), [(1, 70), (40, 40), (1, 5), (32, 90), (33, 33), (1, 9)])
    taken = slice(1, 5)
    out, rows = case.prefill(taken, more), slice(1, 1 + 40 + 1 + 32 + 33)
    assert_close(out[rows], case.expected()[rows])
    assert out[: rows.start].isnan().all()
    assert out[rows.stop :].isnan().all()


def test_a_list_without_sequences_computes_nothing(device: Native) -> None:
    case = Case(device, Kv.BFLOAT16, (4, 2, 64), [(20, 40), (1, 70)])
    assert case.prefill(slice(0, 0), more=9).isnan().all()


@formats
def test_random_prompts_begin_at_any_row_of_a_tile(device: Native, kv: Kv) -> None:
    lengths = [random.choice((1, 2, 15, 16, 17, 63, 64, 65)) for _ in range(9)]
    sequences = [(length, length + random.choice((0, 3, 50))) for length in lengths]
    case = Case(device, kv, (3, 1, 64), sequences, window=random.choice((0, 0, 33)))
    assert_close(case.prefill(more=random.randrange(3)), case.expected())


OPS = {"decode_attention": DecodeAttention, "prefill_attention": PrefillAttention}
POINTERS = ("q", "tables", "tasks", "list", "out", "parts", "part_sums", "arrived", "table_rows", "firsts", "stored")


def arguments(op: str) -> Any:
    """Arguments of a right shape, whose addresses lead nowhere."""
    pool = KvPool("cpu", Kv.BFLOAT16, 2, 64, 16, 1)
    args: Any = OPS[op]()
    for field_name in POINTERS:
        if hasattr(args, field_name):
            setattr(args, field_name, 0x1000)
    args.blocks = pool.struct
    args.blocks.data, args.blocks.stride = 0x1000, 8192
    args.q_stride, args.sequences, args.heads, args.max_blocks, args.scale = 256, 2, 4, 3, 0.125
    if op == "decode_attention":
        args.most_parts, args.multiprocessors = 2, 1
    else:
        args.rows = 5
    return args


@pytest.mark.parametrize("op", OPS)
def test_no_sequences_are_no_work(device: Native, op: str) -> None:
    device.launch(op, OPS[op]())


WRONG = [
    ("q", 0, Code.NULL_POINTER),
    ("q", 0x1004, Code.MISALIGNED),
    ("out", 0, Code.NULL_POINTER),
    ("tables", 0, Code.NULL_POINTER),
    ("sinks", 0x1001, Code.MISALIGNED),
    ("q_stride", 255, Code.BAD_SHAPE),
    ("q_stride", 260, Code.BAD_SHAPE),
    ("sequences", -1, Code.BAD_COUNT),
    ("sequences", 65536, Code.BAD_SHAPE),
    ("heads", 3, Code.BAD_SHAPE),
    ("max_blocks", 0, Code.BAD_EXTENT),
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
    ("most_parts", 0, Code.BAD_SHAPE),
    ("multiprocessors", 0, Code.BAD_SHAPE),
    ("multiprocessors", 65536, Code.BAD_SHAPE),
    ("tasks", 0x1002, Code.MISALIGNED),
    ("list", 0, Code.NULL_POINTER),
    ("parts", 0, Code.NULL_POINTER),
    ("part_sums", 0, Code.NULL_POINTER),
    ("arrived", 0, Code.NULL_POINTER),
]
ONLY_PREFILL = [
    ("firsts", 0, Code.NULL_POINTER),
    ("table_rows", 0, Code.NULL_POINTER),
    ("stored", 0x1001, Code.MISALIGNED),
    ("window", -1, Code.BAD_COUNT),
    ("list", 0x1002, Code.MISALIGNED),
    ("rows", -1, Code.BAD_COUNT),
]
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
