"""Codes of keys and values: those that core_cpu stores for the same entries, and what they are read as."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.hadamard import hadamard
from headrace_engine.backends.torch.kv_pool import KvPool, QuantizedEntries, token_bytes
from headrace_engine.config import KvCacheMode
from headrace_engine.models.spec import DecoderSpec, LayerSpec, RopeSpec
from headrace_engine.native import Cpu, Kv
from headrace_engine.native import load as load_native
from native.kv_pool import hadamard_matrix
from native.one_program import OneProgram

CPU = torch.device("cpu")
TOKENS, HEADS, DIM = 40, 3, 48
MODES = {KvCacheMode.INT8: (Kv.INT8, 8), KvCacheMode.UINT4: (Kv.UINT4, 4)}
BLOCKS = [2, 0, 3]


def entries(kind: str, seed: int) -> np.ndarray:
    """Keys or values of all tokens, [TOKENS, HEADS · DIM]."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((TOKENS, HEADS * DIM), np.float32)
    if kind == "equal":
        return np.repeat(x[:, ::DIM], DIM, 1)
    if kind == "halves":  # Many entries lie exactly between two codes.
        return rng.integers(0, 2 * 15 + 1, x.shape).astype(np.float32) / 2
    scales = {"tiny": 1e-38, "huge": 1e37, "far": 1.0}
    return x * np.float32(scales.get(kind, 1)) + np.float32(1e4 if kind == "far" else 0)


def core_pages(kv: Kv, k: np.ndarray, v: np.ndarray, run: list) -> tuple[OneProgram, np.ndarray]:
    """core_cpu's pool after it appended these: a page's bytes by block and head."""
    ones, none = np.ones((TOKENS, DIM // 2), np.float32), np.zeros((TOKENS, DIM // 2), np.float32)
    cpu = Cpu(load_native("cpu"), threads=1)
    run.append(cpu)
    program = OneProgram(
        cpu, {"q": k, "k": k, "v": v}, {"turned": HEADS * DIM},
        lambda program, x: program.rope_append(0, x["q"], x["k"], x["v"], x["turned"], (ones, none)),
        max_positions=TOKENS, heads=HEADS, kv_heads=HEADS, head_dim=DIM, block_size=16, kv=kv,
    )  # fmt: skip
    pool = program.pool(4)
    program.run(pool, 4, [(np.array(BLOCKS, dtype=np.int32), 0, TOKENS)])
    return program, np.array(pool.view(0, pool.nbytes)).reshape(4, HEADS, -1)


@pytest.fixture
def opened():
    """Threads that are ended."""
    cpus = []
    yield cpus
    for cpu in cpus:
        cpu.close()


def split(page: np.ndarray, mode: KvCacheMode) -> list[tuple[np.ndarray, np.ndarray]]:
    """Codes [16, DIM] and scales [16, 2] of the keys and of the values in a page, as csrc/cpu/kv.h lays them out."""
    bits = MODES[mode][1]
    size = 16 * DIM * bits // 8
    found = []
    for part, of in enumerate(("keys", "values")):
        begin = part * (size + 2 * 16 * 4)
        codes = page[begin : begin + size]
        scales = page[begin + size : begin + size + 128].copy().view(np.float32).reshape(2, 16).T
        if bits == 8:
            codes = codes.reshape(DIM, 16).T if of == "keys" else codes.reshape(16, DIM)
        elif of == "keys":  # Entries 2 i and 2 i + 1 in a byte.
            pairs = codes.reshape(DIM // 2, 16)
            codes = np.stack([pairs & 15, pairs >> 4], 1).reshape(DIM, 16).T
        else:  # Entries i and i + DIM / 2.
            pairs = codes.reshape(16, DIM // 2)
            codes = np.concatenate([pairs & 15, pairs >> 4], 1)
        found.append((codes, scales))
    return found


@pytest.mark.parametrize("kind", ["plain", "equal", "halves", "tiny", "huge", "far"])
@pytest.mark.parametrize("mode", MODES)
def test_the_codes_are_the_native_core_s(mode, kind, opened):
    """Byte by byte, with steps and lowest values; what they are read as differs by one rounding at most."""
    kv, bits = MODES[mode]
    k, v = entries(kind, 1), entries(kind, 2)
    program, pages = core_pages(kv, k, v, opened)
    places = [divmod(position, 16) for position in range(TOKENS)]
    blocks, offsets = (torch.tensor(each) for each in zip(*((BLOCKS[b], o) for b, o in places), strict=True))
    for part, x in enumerate((k, v)):
        pool = QuantizedEntries((4, HEADS, 16, DIM), bits, CPU)
        pool.put(blocks, offsets, torch.from_numpy(x).unflatten(1, (HEADS, DIM)))
        codes, scales = pool.tensors
        whole = torch.cat([codes & 15, codes >> 4], -1) if bits == 4 else codes
        read = pool.outputs(pool.gather(torch.tensor([BLOCKS]))[0]).numpy()
        limit = 3e-7 if bits == 8 else 2e-6  # Of sums.
        for position, (block, slot) in enumerate(places):
            for head in range(HEADS):
                its_codes, its_scales = split(pages[BLOCKS[block], head], mode)[part]
                at = BLOCKS[block], head, slot
                np.testing.assert_array_equal(whole[at].numpy(), its_codes[slot])
                np.testing.assert_array_equal(scales[at].numpy().view(np.uint32), its_scales[slot].view(np.uint32))
            its = program.program.kv(0, BLOCKS[block], slot)[part]
            np.testing.assert_allclose(read[:, position], its, rtol=limit, atol=limit * np.abs(x).max())


@pytest.mark.parametrize("mode", MODES)
def test_an_entry_is_off_by_half_a_step_at_most(mode):
    bits = MODES[mode][1]
    x = torch.from_numpy(entries("plain", 3)).unflatten(1, (HEADS, DIM))
    pool = QuantizedEntries((3, HEADS, 16, DIM), bits, CPU)
    at = torch.arange(TOKENS)
    pool.put(at // 16, at % 16, x)
    read = pool.gather(torch.arange(3).unsqueeze(0))[0, :, :TOKENS].transpose(0, 1)
    x = hadamard(x) if bits == 4 else x
    steps = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / (2**bits - 1)
    assert ((read - x).abs() <= steps * 0.5001).all()
    for edge in (x.amin(-1), x.amax(-1)):
        assert ((read - edge.unsqueeze(-1)).abs().amin(-1) < 1e-5).all()


@pytest.mark.parametrize("dim", [16, 48, 64, 80, 96, 128, 256])
def test_heads_are_rotated_by_a_hadamard_matrix(dim):
    x = torch.randn(5, 3, dim, generator=torch.Generator().manual_seed(dim))
    expected = x.double() @ torch.from_numpy(hadamard_matrix(dim))
    torch.testing.assert_close(hadamard(x).double(), expected, rtol=0, atol=1e-5 * dim**0.5)


def test_outliers_cost_the_other_entries_little():
    """One entry in each head is far larger than the others, which alone would leave them three codes."""
    x = torch.randn(16, 2, 64, generator=torch.Generator().manual_seed(0))
    x[..., 5] = 30
    pool = QuantizedEntries((1, 2, 16, 64), 4, CPU)
    pool.put(torch.zeros(16, dtype=torch.long), torch.arange(16), x)
    read = pool.outputs(pool.gather(torch.zeros(1, 1, dtype=torch.long))[0]).transpose(0, 1)
    plain = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / 15
    assert (read - x).square().mean() < (plain.square() / 12).mean() / 4


@pytest.mark.parametrize("mode", KvCacheMode)
def test_what_was_not_finite_is_not_when_read(mode):
    """So that the sequence ends with an error, as it does where entries are numbers."""
    spec = DecoderSpec("llama", 100, 64, 2, 1, 16, 128, 1e-5, (RopeSpec(1e4, 16),), (LayerSpec(),), max_length=64)
    pool = KvPool(spec, 1, 16, mode, torch.float32, CPU)
    x = torch.ones(2, 1, 16)
    x[0, 0, 3], x[1, 0, 5] = torch.nan, torch.inf
    pool.keys[0].put(torch.tensor([0, 0]), torch.tensor([4, 5]), x)
    read = pool.keys[0].gather(torch.tensor([[0]]))[0, 0]
    assert not read[4].isfinite().all()
    assert not read[5].isfinite().all()
    assert read[6].isfinite().all()
    assert sum(tensor.nbytes for tensor in pool.tensors) == 16 * token_bytes(spec, mode, 4)
