"""Paged attention in plain torch, bit-identical for a row whatever else is in the batch.

The product of two float32 matrices depends on their shapes, which determine a library's order of summation.
So all products here have one shape: a *tile* of QUERY_TILE queries at positions from a multiple of QUERY_TILE on,
times KEY_TILE keys from a multiple of KEY_TILE on, one pair after the other with a running maximum and sum (as in
Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018). A query's index in its tile depends on its
position alone, and masked keys add exactly 0: chunks, other rows and padding change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_engine.backends.torch.batch import QUERY_TILE, TileGroup, TorchBatch
from headrace_engine.backends.torch.kv_pool import Entries

KEY_TILE = 128
"""Number of keys per tile, if the block size divides it."""


def blocks_per_tile(block_size: int) -> int:
    """Return the number of blocks per tile of keys."""
    return max(1, KEY_TILE // block_size)


@dataclass(frozen=True, slots=True)
class Scores:
    """Products of queries and keys.

    Attributes:
        scale: multiplies them.
        soft_cap: they become soft_cap · tanh(score / soft_cap); 0: they stay.
        window: maximum number of positions that a row attends to, its own included; None: all.
        sinks: see Ops.paged_attention.
    """

    scale: float
    soft_cap: float = 0.0
    window: int | None = None
    sinks: Tensor | None = None


def paged_attention(
    q: Tensor, keys: Entries, values: Entries, batch: TorchBatch, block_size: int, scores: Scores
) -> Tensor:
    """Compute causal attention of each row to its own sequence.

    Args:
        q: [rows, heads, head_dim].
        keys, values: the pool of one layer.
        batch: the rows.
        block_size: tokens per block.
        scores: their scale, and the positions that a row attends to.

    Returns: [rows, heads, head_dim] in q's type; computed in float32.
    """
    scaled = keys.queries(q.float() * scores.scale)
    return attention_of(scaled, keys, values, batch, block_size, scores)[..., : q.shape[-1]].to(q.dtype)


def attention_of(
    scaled: Tensor, keys: Entries, values: Entries, batch: TorchBatch, block_size: int, scores: Scores
) -> Tensor:
    """Compute the same for float32 queries that are scaled already, and prepared by `Entries.queries`."""
    tiled = scaled.new_zeros(batch.num_tiles * QUERY_TILE, *scaled.shape[1:])
    tiled[batch.tile_rows] = scaled
    tiled = tiled.unflatten(0, (batch.num_tiles, QUERY_TILE))
    out = torch.cat([_attend(tiled, keys, values, group, block_size, scores) for group in batch.groups])
    return values.outputs(out.flatten(0, 1)[batch.tile_rows])


def _attend(tiled: Tensor, keys: Entries, values: Entries, group: TileGroup, block_size: int, rules: Scores) -> Tensor:
    """Compute the attention of one group of tiles: [tiles, QUERY_TILE, heads, head_dim]."""
    tiles, kv_heads = len(group.context), keys.tensors[0].shape[1]
    q = tiled[group.first_tile : group.first_tile + tiles]
    q = q.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [tiles, kv_heads, heads of one, QUERY_TILE, head_dim]
    # The lowest number rather than -inf: the difference of two maxima stays finite before the first visible key.
    best = q.new_full((*q.shape[:-1], 1), torch.finfo(torch.float32).min)
    total, mixed = torch.zeros_like(best), torch.zeros_like(q)
    step = blocks_per_tile(block_size)
    for first in range(_first_block(group, rules.window, block_size), group.tables.shape[1], step):
        table = group.tables[:, first : first + step]
        at = first * block_size + torch.arange(step * block_size, device=q.device)
        scores = _scores(q, keys.gather(table))
        if rules.soft_cap:
            scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
        scores = scores.masked_fill(_hidden(at, group, rules.window), -math.inf)
        higher = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink, weights = torch.exp(best - higher), torch.exp(scores - higher)
        v = values.gather(table)
        if first * block_size + v.shape[2] > group.shortest:
            # Slots that were never written may hold NaN, and 0 times NaN is NaN.
            v = v.masked_fill((at >= group.context.unsqueeze(1))[:, None, :, None], 0)
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + _mix(weights, v)
        best = higher
    if rules.sinks is not None:
        total = total + torch.exp(rules.sinks.float().view(kv_heads, -1, 1, 1) - best)
    return (mixed / total).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _first_block(group: TileGroup, window: int | None, block_size: int) -> int:
    """Return the first block of the first key tile that is visible to a row."""
    step = blocks_per_tile(block_size)
    lowest = 0 if window is None else max(0, group.lowest - window + 1)
    return lowest // (step * block_size) * step


def _hidden(at: Tensor, group: TileGroup, window: int | None) -> Tensor:
    """Return a mask of the keys at positions `at` that each query may not see: [tiles, 1, 1, QUERY_TILE, keys]."""
    queries = group.positions.unsqueeze(-1)
    hidden = (at > queries) | (at >= group.context[:, None, None])
    if window is not None:
        hidden |= at <= queries - window
    return hidden[:, None, None]


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Multiply q [tiles, kv_heads, heads of one, QUERY_TILE, head_dim] and k: [.., keys] for [.., head_dim]."""
    return torch.matmul(q.flatten(2, 3), k.transpose(-1, -2)).view(*q.shape[:4], -1)


def _mix(weights: Tensor, v: Tensor) -> Tensor:
    """Return weighted sums of v [tiles, kv_heads, keys, head_dim]: [.., head_dim] for weights [.., keys]."""
    return torch.matmul(weights.flatten(2, 3), v).view(*weights.shape[:4], -1)
