"""Paged attention against plain attention in float64, in batches of every mixture."""

from __future__ import annotations

import random

import pytest
import torch
from headrace_engine.backends.torch.attention import KEY_TILE, Scores, blocks_per_tile, paged_attention
from headrace_engine.backends.torch.batch import QUERY_TILE, prepare
from headrace_engine.backends.torch.kv_pool import Numbers
from headrace_engine.models.ops import Batch, Extent
from hypothesis import given, settings
from hypothesis import strategies as st

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM = 6, 2, 8


def plain_attention(q, keys, values, window):
    """Attention of q [rows, heads, dim], the last positions of keys and values [positions, kv_heads, dim]."""
    length, group = len(keys), q.shape[1] // keys.shape[1]
    q, keys, values = (tensor.double() for tensor in (q, keys, values))
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    at, queries = torch.arange(length), torch.arange(length - len(q), length).unsqueeze(1)
    hidden = (at > queries) | (at <= queries - (window or length))
    scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


class Paged:
    """Sequences (start, length), each with random queries, keys and values in shuffled blocks of a pool of NaN."""

    def __init__(self, shares, block_size=16, seed=0, kv_heads=KV_HEADS, heads=HEADS):
        generator = torch.Generator().manual_seed(seed)
        needed = [-(-(start + length) // block_size) for start, length in shares]
        order = random.Random(seed).sample(range(sum(needed)), sum(needed))
        shape = (sum(needed) + 1, kv_heads, block_size, DIM)
        self.keys, self.values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        self.block_size, self.extents, self.sequences = block_size, [], []
        for (start, length), count in zip(shares, needed, strict=True):
            blocks, order = order[:count], order[count:]
            row = sum(extent.length for extent in self.extents)
            self.extents.append(Extent(row, length, start, blocks))
            k, v = (torch.randn(start + length, kv_heads, DIM, generator=generator) for _ in range(2))
            for position in range(start + length):
                place = (blocks[position // block_size], slice(None), position % block_size)
                self.keys[place], self.values[place] = k[position], v[position]
            self.sequences.append((torch.randn(length, heads, DIM, generator=generator) * 2, k, v))

    def attend(self, window=None, dtype=torch.float32):
        q = torch.cat([q for q, _, _ in self.sequences]).to(dtype)
        batch = Batch([0] * len(q), self.extents, [])
        prepared = prepare(batch, self.block_size, blocks_per_tile(self.block_size), CPU)
        keys, values = Numbers(self.keys.to(dtype)), Numbers(self.values.to(dtype))
        return paged_attention(q, keys, values, prepared, self.block_size, Scores(DIM**-0.5, window=window))

    def expected(self, window=None):
        return torch.cat([plain_attention(q, k, v, window) for q, k, v in self.sequences])


SHARES = st.lists(st.tuples(st.integers(0, 2 * KEY_TILE + 9), st.integers(1, 3 * QUERY_TILE)), min_size=1, max_size=6)


@given(shares=SHARES, window=st.none() | st.integers(1, 200), block_size=st.sampled_from([8, 16, 128]))
@settings(max_examples=40, deadline=None)
def test_any_mixture_of_chunks_and_single_rows(shares, window, block_size):
    paged = Paged(shares, block_size)
    torch.testing.assert_close(paged.attend(window).double(), paged.expected(window), rtol=1e-5, atol=1e-5)


def test_a_batch_of_more_tiles_than_are_computed_at_once():
    paged = Paged([(3, 700), (900, 1), (0, 1)])
    torch.testing.assert_close(paged.attend().double(), paged.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (6, 2), (7, 1), (14, 2), (5, 5), (12, 4), (40, 8), (1, 1)])
def test_bc120_any_ratio_of_heads(heads, kv_heads):
    paged = Paged([(130, 9), (20, 1)], heads=heads, kv_heads=kv_heads)
    torch.testing.assert_close(paged.attend().double(), paged.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 50])
def test_a_row_has_the_same_bits_alone_and_in_any_chunk(window):
    """One sequence of 300 positions, computed in chunks of all sizes beside a longer neighbour."""
    whole = Paged([(0, 300)])
    expected = whole.attend(window)
    neighbour = Paged([(700, 5)], seed=1)
    for size in (1, 3, QUERY_TILE, 16, 299):
        for start in range(0, 300, max(size, 37)):
            length = min(size, 300 - start)
            q, k, v = whole.sequences[0]
            blocks = whole.extents[0].blocks
            part = Paged([(0, 300)])
            part.extents = [Extent(0, length, start, blocks), _shifted(neighbour.extents[0], length, len(whole.keys))]
            part.sequences = [(q[start : start + length], k, v), neighbour.sequences[0]]
            part.keys, part.values = (torch.cat(pair) for pair in _pools(whole, neighbour, start + length))
            assert torch.equal(part.attend(window)[:length], expected[start : start + length])


def _shifted(extent, row, blocks):
    return Extent(row, extent.length, extent.start, [block + blocks for block in extent.blocks])


def _pools(whole, neighbour, written):
    """Both pools, the first with NaN where nothing was written yet."""
    for mine, other in ((whole.keys, neighbour.keys), (whole.values, neighbour.values)):
        mine = mine.clone()
        for position in range(written, 300):
            mine[whole.extents[0].blocks[position // 16], :, position % 16] = torch.nan
        yield mine, other


def test_half_precision_is_computed_in_float32():
    paged = Paged([(100, 20), (60, 1)])
    out = paged.attend(dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), paged.expected(), rtol=3e-2, atol=3e-2)
